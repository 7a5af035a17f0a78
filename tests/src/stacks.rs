//! The stacks in a recording, read as docs/recording-format.md tells anybody to.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::process::Process;

/// One frame.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Where the thread was, or is going to return to.
    pub address: u64,
    /// The function's name; empty if it has none.
    pub function: String,
    /// The mapped file's path, and the address as that file counts it.
    pub module: String,
    /// See `module`.
    pub module_address: u64,
}

/// One stack, innermost frame first.
#[derive(Clone, Debug)]
pub struct Stack {
    /// The frames.
    pub frames: Vec<Frame>,
    /// Whether it reaches the thread's start, each frame by its unwind information.
    pub is_whole: bool,
    /// Why it does not; empty if it does.
    pub truncated: String,
}

impl Stack {
    /// Whether a function is in it.
    pub fn has(&self, function: &str) -> bool {
        self.frames.iter().any(|frame| frame.function == function)
    }

    /// The function that called this one.
    pub fn caller_of(&self, function: &str) -> Option<&str> {
        let at = self.frames.iter().rposition(|frame| frame.function == function)?;
        Some(self.frames.get(at + 1)?.function.as_str())
    }

    /// The addresses, innermost first.
    pub fn addresses(&self) -> Vec<u64> {
        self.frames.iter().map(|frame| frame.address).collect()
    }
}

/// Times off the CPU with the same stack, of threads of the same name.
#[derive(Clone, Debug)]
pub struct Wait {
    /// Why.
    pub reason: String,
    /// The threads' name.
    pub comm: String,
    /// How many.
    pub count: u64,
    /// Nanoseconds off the CPU in all.
    pub total_ns: u64,
    /// Whether they were inside an operation.
    pub in_operation: bool,
    /// `None`: no stack was taken.
    pub stack: Option<Stack>,
}

/// The waits of a recording, with their stacks.
#[track_caller]
pub fn waits(recording: &Path) -> Vec<Wait> {
    let json = payload(recording);
    let stacks = stacks(&json);
    let all = json["waits"].as_array().expect("waits");
    all.iter()
        .map(|wait| Wait {
            reason: text(wait, "reason"),
            comm: text(wait, "comm"),
            count: number(wait, "count"),
            total_ns: number(wait, "total_ns") + number(wait, "run_queue_ns"),
            in_operation: !wait["operation"].is_null(),
            stack: stacks.get(&number(wait, "stack_id")).cloned(),
        })
        .collect()
}

/// How often each stack waited for the lock of this name.
#[track_caller]
pub fn waits_for_lock(recording: &Path, name: &str) -> Vec<(u64, Option<Stack>)> {
    let json = payload(recording);
    let stacks = stacks(&json);
    let all = json["locks"].as_array().expect("locks");
    let lock = all.iter().find(|lock| text(lock, "name").ends_with(name));
    let lock = lock.unwrap_or_else(|| panic!("no lock {name} in {all:#?}"));
    let waited = lock["stacks"].as_array().expect("stacks");
    waited
        .iter()
        .map(|entry| (number(entry, "waits"), stacks.get(&number(entry, "stack_id")).cloned()))
        .collect()
}

/// The share, from 0 to 1, of what is counted that `is_so`.
#[track_caller]
pub fn share<T>(counted: &[(u64, T)], is_so: impl Fn(&T) -> bool) -> f64 {
    let all: u64 = counted.iter().map(|(count, _)| count).sum();
    assert!(all > 0, "nothing was counted");
    let so: u64 = counted.iter().filter(|(_, item)| is_so(item)).map(|(count, _)| count).sum();
    so as f64 / all as f64
}

#[track_caller]
fn payload(recording: &Path) -> Value {
    let mut unpack = Command::new("sh");
    unpack.args(["-c", "tail -c +57 \"$1\" | gunzip", "sh"]).arg(recording);
    let finished = Process::run(&mut unpack, Duration::from_secs(30));
    serde_json::from_str(&finished.stdout)
        .unwrap_or_else(|err| panic!("{}: {err}: {}", recording.display(), finished.stderr))
}

fn stacks(json: &Value) -> BTreeMap<u64, Stack> {
    let table = &json["stacks"];
    let frames = table["frames"].as_array().expect("frames");
    let all = table["stacks"].as_array().expect("stacks");
    let frame_at = |index: &Value| frame(&frames[index.as_u64().expect("an index") as usize]);
    all.iter()
        .map(|stack| {
            let indices = stack["frames"].as_array().expect("indices");
            let stack_of = Stack {
                frames: indices.iter().map(frame_at).collect(),
                is_whole: stack["truncated"].is_null() && stack["used_frame_pointer"] == false,
                truncated: text(stack, "truncated"),
            };
            (number(stack, "id"), stack_of)
        })
        .collect()
}

fn frame(json: &Value) -> Frame {
    Frame {
        address: number(json, "address"),
        function: text(json, "function"),
        module: text(json, "module"),
        module_address: json["module_address"].as_u64().unwrap_or(0),
    }
}

#[track_caller]
fn number(json: &Value, key: &str) -> u64 {
    json[key].as_u64().unwrap_or_else(|| panic!("no number {key} in {json:#}"))
}

/// Empty where it is null.
fn text(json: &Value, key: &str) -> String {
    json[key].as_str().unwrap_or_default().to_owned()
}
