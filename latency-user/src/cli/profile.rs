//! What `latency record` does with samples of the threads on the CPU.

use super::args::RecordArgs;
use crate::attach::{self, Session};
use crate::recording::{RecordingBuilder, SampleClock};

/// Begins to make the sampling ready; returns what went wrong, if anything did: the rest of the
/// trace goes on without samples.
pub fn start(args: &RecordArgs, session: &mut Session) -> Option<String> {
    let frequency_hz = args.frequency_hz();
    if frequency_hz == 0 {
        return None;
    }
    session.start_profile(frequency_hz).err().map(|error| refusal(&error))
}

/// Begins to sample as soon as that is possible, at once or, with `wait`, before it returns. To be
/// called now and then; returns what went wrong, if anything did.
pub fn attach(
    args: &RecordArgs,
    session: &mut Session,
    builder: &mut RecordingBuilder,
    wait: bool,
) -> Option<String> {
    match session.attach_profile(wait)? {
        Ok(clock) => {
            let clock = match clock {
                attach::SampleClock::Cycles => SampleClock::Cycles,
                attach::SampleClock::CpuClock => SampleClock::CpuClock,
            };
            builder.set_sampled(args.frequency_hz(), clock, attach::monotonic_ns());
            None
        }
        Err(error) => Some(refusal(&error)),
    }
}

fn refusal(error: &attach::AttachError) -> String {
    format!("what runs on the CPU cannot be sampled: {error}")
}
