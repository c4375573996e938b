//! A review of any bytes: read, judged and answered without a panic, and the answer is JSON.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| {
    if let Ok(answer) = keelson_webhook::answer_alone(body) {
        let text = serde_json::to_string(&answer).expect("an answer is JSON");
        assert!(text.contains("\"uid\""));
    }
});
