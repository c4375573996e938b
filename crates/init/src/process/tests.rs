use super::*;

/// A manager whose events are sent by the test.
fn manager() -> Manager {
    let (sender, incoming) = channel();
    Manager {
        incoming,
        sender,
        notify: None,
        events: VecDeque::new(),
        main: Some(100),
        fatal: None,
        error: None,
        beside: Vec::new(),
        stop_signal: Signal::TERM,
        stopping: false,
    }
}

fn notify(sender: i32, main_pid: i32) -> Incoming {
    Incoming::Notify(Message {
        sender: Some(sender),
        ready: true,
        main_pid: Some(main_pid),
    })
}

fn logged(text: &str) -> Incoming {
    Incoming::LogLine(LogLine::Fatal(text.to_owned()))
}

const AT_ONCE: Duration = Duration::ZERO;

/// A process that exists.
fn us() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

#[test]
fn only_the_daemon_itself_says_who_takes_over() {
    let mut manager = manager();
    manager.take(notify(666, us()));
    assert_eq!((manager.main(), manager.next(AT_ONCE)), (Some(100), None));
    manager.take(notify(100, us()));
    assert_eq!(
        (manager.main(), manager.next(AT_ONCE)),
        (Some(us()), Some(Event::Ready))
    );
    manager.take(notify(100, 1000));
    assert_eq!(manager.main(), Some(us()), "it has no say any more");
}

#[test]
fn a_hand_over_is_known_before_the_end_of_the_old_process() {
    let mut manager = manager();
    // The signal is for another child, but by the time it is handled the old process has exited as well.
    manager.sender.send(Incoming::Signal(SIGHUP)).unwrap();
    manager.sender.send(notify(100, us())).unwrap();
    manager.account_for(&[(99, 0), (100, 0)]);
    assert_eq!(manager.main(), Some(us()));
    let events: Vec<_> = (0..3).map(|_| manager.next(AT_ONCE)).collect();
    assert_eq!(events, [Some(Event::Ready), Some(Event::Reload), None]);
}

#[test]
fn an_end_without_a_hand_over_is_the_end() {
    let mut manager = manager();
    manager.account_for(&[(99, 1), (100, 137)]);
    assert_eq!(
        (manager.main(), manager.next(AT_ONCE)),
        (None, Some(Event::Ended(137)))
    );
}

#[test]
fn a_successor_that_is_dead_already_is_the_end_too() {
    let mut manager = manager();
    manager.take(notify(100, i32::MAX));
    assert_eq!(
        (manager.main(), manager.next(AT_ONCE)),
        (None, Some(Event::Ended(1)))
    );
}

#[test]
fn a_stop_reaches_the_process_that_took_over_meanwhile() {
    let mut child = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = i32::try_from(child.id()).unwrap();
    let mut manager = manager();
    manager.main = Some(pid);
    manager.stopping = true;
    manager.take(notify(pid, pid));
    let status = child.wait().unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(SIGTERM)
    );
}

#[test]
fn signals_become_events() {
    let mut manager = manager();
    for signal in [SIGTERM, SIGHUP, SIGINT] {
        manager.sender.send(Incoming::Signal(signal)).unwrap();
    }
    let events: Vec<_> = (0..4).map(|_| manager.next(AT_ONCE)).collect();
    assert_eq!(
        events,
        [Some(Event::Stop), Some(Event::Reload), Some(Event::Stop), None]
    );
}

#[test]
fn the_last_words_are_waited_for_and_nothing_else_is_lost() {
    let mut manager = manager();
    manager.sender.send(Incoming::Signal(SIGTERM)).unwrap();
    let sender = manager.sender.clone();
    let late = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        sender.send(logged("fatal: why")).unwrap();
    });
    manager.account_for(&[(100, 1)]);
    late.join().unwrap();
    assert_eq!(manager.reason(), Some("fatal: why"));
    let events: Vec<_> = (0..3).map(|_| manager.next(AT_ONCE)).collect();
    assert_eq!(events, [Some(Event::Ended(1)), Some(Event::Stop), None]);
}

#[test]
fn nobody_waits_for_words_when_the_log_has_ended() {
    let mut manager = manager();
    let sender = manager.sender.clone();
    let late = thread::spawn(move || {
        thread::sleep(Duration::from_millis(50));
        sender
            .send(Incoming::LogLine(LogLine::Error("error: x".to_owned())))
            .unwrap();
        sender.send(Incoming::LogEnded).unwrap();
        sender.send(logged("fatal: of the next one")).unwrap();
    });
    manager.account_for(&[(100, 1)]);
    late.join().unwrap();
    assert_eq!(manager.reason(), Some("error: x"));
}

#[test]
fn a_fatal_line_outweighs_later_errors_until_it_is_forgotten() {
    let mut manager = manager();
    manager.take(logged("fatal: why"));
    manager.take(Incoming::LogLine(LogLine::Error("error: later".to_owned())));
    assert_eq!(manager.reason(), Some("fatal: why"));
    manager.forget_reasons();
    assert_eq!(manager.reason(), None);
    manager.take(Incoming::LogLine(LogLine::Resumed));
    assert_eq!(manager.next(AT_ONCE), Some(Event::Resumed));
}
