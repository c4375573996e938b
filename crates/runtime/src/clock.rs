//! The one place where the wall clock is read.

use std::{fmt, sync::Arc};

use jiff::Timestamp;

/// A source of the current time. Code gets a clock passed in instead of reading the system clock.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    #[allow(
        clippy::disallowed_methods,
        reason = "every other module gets the time from here"
    )]
    pub fn system() -> Self {
        Self(Arc::new(Timestamp::now))
    }

    /// Returns a clock with a fixed time, for tests.
    pub fn fixed(at: Timestamp) -> Self {
        Self(Arc::new(move || at))
    }

    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}
