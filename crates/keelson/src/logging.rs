//! Logging to standard error.

use anyhow::Context as _;
use tracing_subscriber::EnvFilter;

use crate::flags::Log;

pub fn start(log: &Log) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(filter(&log.zap_log_level))
        .with_context(|| format!("{:?} is not a valid log level", log.zap_log_level))?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    if log.zap_devel || log.zap_encoder == "console" {
        lines.init();
    } else {
        lines
            .json()
            .flatten_event(true)
            .with_current_span(true)
            .with_span_list(false)
            .init();
    }
    Ok(())
}

/// zap accepts names and numbers. The numbers are levels of detail beyond debug.
fn filter(level: &str) -> String {
    match level.parse::<i32>() {
        Ok(number) if number <= 0 => "info".to_owned(),
        Ok(1) => "debug".to_owned(),
        Ok(_) => "trace".to_owned(),
        Err(_) if level == "panic" || level == "fatal" => "error".to_owned(),
        Err(_) => level.to_owned(),
    }
}
