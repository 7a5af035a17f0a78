//! The programs in `workloads/`: built once per content, started, and waited for.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::process::{Finished, Process};
use crate::report::{Operations, operations};

/// How a workload is linked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Build {
    /// Against the system's shared libraries.
    Shared,
    /// Statically, with symbols.
    Static,
    /// Statically, without any symbol.
    StaticStripped,
}

const FLAGS: &[&str] = &[
    "-O2",
    "-g",
    // Some distributions turn them on.
    "-fomit-frame-pointer",
    "-Wall",
    "-Wextra",
    "-Werror",
    // The low-level functions are deprecated, and in use everywhere.
    "-Wno-deprecated-declarations",
    "-rdynamic",
    "-Wl,--build-id",
    "-Wl,--as-needed",
];
const LIBRARIES: &[&str] = &["-lcrypto", "-pthread", "-ldl"];

/// Builds `workloads/NAME.c`, unless the same content was built before, and returns the program.
#[track_caller]
pub fn build(name: &str, build: Build) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads");
    let source = sources.join(name).with_extension("c");
    let mut hasher = DefaultHasher::new();
    (FLAGS, LIBRARIES, build).hash(&mut hasher);
    for file in [&source, &sources.join("workload.h"), &sources.join("samples.h")] {
        let text = fs::read(file).unwrap_or_else(|err| panic!("{}: {err}", file.display()));
        text.hash(&mut hasher);
    }
    let folder = crate::cache_folder();
    let program = folder.join(format!("{name}-{:016x}", hasher.finish()));

    let lock = File::create(folder.join("build.lock")).expect("creating the build's lock");
    lock.lock().expect("locking the build");
    if program.exists() {
        return program;
    }
    let half_built = program.with_extension("tmp");
    let mut command = Command::new("cc");
    command.args(FLAGS).arg("-o").arg(&half_built).arg(&source);
    match build {
        Build::Shared => &mut command,
        // The linker warns of getaddrinfo and dlopen, which are never called.
        Build::Static => command.arg("-static"),
        Build::StaticStripped => command.args(["-static", "-s"]),
    };
    let done = command.args(LIBRARIES).output().expect("cc is installed");
    assert!(
        done.status.success(),
        "{command:?}: {}\n{}",
        done.status,
        String::from_utf8_lossy(&done.stderr)
    );
    fs::rename(&half_built, &program).expect("moving the built program into place");
    program
}

/// A workload that waits for the word to start. Its keys are made: all it signs from now on
/// counts.
pub struct Workload {
    name: String,
    program: PathBuf,
    process: Process,
}

impl Workload {
    /// Starts the key service with these options, and `--wait-start --wait-end`.
    #[track_caller]
    pub fn key_service(options: &[&str]) -> Self {
        let program = build("keysvc", Build::Shared);
        let mut command = Command::new(&program);
        command.args(options).args(["--wait-start", "--wait-end"]);
        Self::started("keysvc", program, &mut command)
    }

    /// The same, with all its threads on one CPU.
    #[track_caller]
    pub fn key_service_on(cpu: &str, options: &[&str]) -> Self {
        let program = build("keysvc", Build::Shared);
        let mut command = Command::new("taskset");
        command.args(["-c", cpu]).arg(&program);
        command.args(options).args(["--wait-start", "--wait-end"]);
        Self::started("keysvc", program, &mut command)
    }

    /// Starts `signloop MODE COUNT --wait --wait-end`.
    #[track_caller]
    pub fn signloop(build_as: Build, mode: &str, count: u32) -> Self {
        let program = build("signloop", build_as);
        Self::signloop_at(&program, mode, count, &[])
    }

    /// Starts this copy of signloop, with more environment variables.
    #[track_caller]
    pub fn signloop_at(program: &Path, mode: &str, count: u32, vars: &[(&str, &str)]) -> Self {
        let mut command = Command::new(program);
        command.args([mode, &count.to_string(), "--wait", "--wait-end"]);
        command.envs(vars.iter().copied());
        Self::started("signloop", program.to_path_buf(), &mut command)
    }

    /// Starts `tiny MODE COUNT --wait --wait-end`.
    #[track_caller]
    pub fn tiny(mode: &str, count: u32) -> Self {
        let program = build("tiny", Build::Shared);
        let mut command = Command::new(&program);
        command.args([mode, &count.to_string(), "--wait", "--wait-end"]);
        Self::started("tiny", program, &mut command)
    }

    /// Starts `oncpu MODE CPU_MS --wait --wait-end`.
    #[track_caller]
    pub fn on_cpu(mode: &str, cpu_ms: u32) -> Self {
        let program = build("oncpu", Build::Shared);
        let mut command = Command::new(&program);
        command.args([mode, &cpu_ms.to_string(), "--wait", "--wait-end"]);
        Self::started("oncpu", program, &mut command)
    }

    /// Starts `blocked OPTIONS`: the first word makes its threads block, the second lets them go.
    #[track_caller]
    pub fn blocked(options: &[&str]) -> Self {
        let program = build("blocked", Build::Shared);
        let mut command = Command::new(&program);
        Self::started("blocked", program, command.args(options))
    }

    /// Starts `big NAPS`, and the program's file, which the caller removes: it has 300 MB.
    #[track_caller]
    pub fn big(naps: u32) -> Self {
        let program = build("big", Build::Shared);
        let mut command = Command::new(&program);
        Self::started("big", program, command.arg(naps.to_string()))
    }

    /// Starts `waits MODE COUNT` in the folder that tests build in, which is on a disk.
    #[track_caller]
    pub fn waits(mode: &str, count: u32) -> Self {
        let program = build("waits", Build::Shared);
        let mut command = Command::new(&program);
        command.args([mode, &count.to_string()]).arg(crate::cache_folder());
        command.args(["--wait", "--wait-end"]);
        Self::started("waits", program, &mut command)
    }

    /// Starts `futexes COUNT --wait --wait-end`.
    #[track_caller]
    pub fn futexes(count: u32) -> Self {
        let program = build("futexes", Build::Shared);
        let mut command = Command::new(&program);
        command.args([&count.to_string(), "--wait", "--wait-end"]);
        Self::started("futexes", program, &mut command)
    }

    #[track_caller]
    fn started(name: &str, program: PathBuf, command: &mut Command) -> Self {
        let process = Process::start(command);
        process.wait_stderr(&format!("{name}: ready"));
        Self { name: name.to_owned(), program, process }
    }

    /// The program's file.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// `FILE:SYMBOL`, as `--probe` and `--request` take it.
    pub fn function(&self, symbol: &str) -> String {
        format!("{}:{symbol}", self.program.display())
    }

    /// The process's id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The process itself.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Gives the word to start.
    #[track_caller]
    pub fn go(&mut self) {
        self.process.send_line();
    }

    /// Waits for the result: what the program itself counted.
    #[track_caller]
    pub fn result(&self) -> Truth {
        let line = self.process.wait_stdout("{");
        let json = serde_json::from_str(&line)
            .unwrap_or_else(|err| panic!("{}'s result: {err}: {line}", self.name));
        Truth { json }
    }

    /// Gives the word to start and waits for the result; the process stays.
    #[track_caller]
    pub fn work(&mut self) -> Truth {
        self.go();
        self.result()
    }

    /// Gives the word to end, and makes sure that tracing did the program no harm.
    #[track_caller]
    pub fn end(mut self) -> Finished {
        self.process.send_line();
        let finished = self.process.finish();
        assert!(finished.status.success(), "{}: {}", self.name, finished.status);
        finished
    }
}

/// A workload's own account of what it did.
pub struct Truth {
    /// The object it printed.
    pub json: Value,
}

impl Truth {
    /// Its operations, in the form in which the tracer's are compared with them.
    #[track_caller]
    pub fn operations(&self) -> Operations {
        operations(&self.json)
    }

    /// A number of the object, by its JSON pointer.
    #[track_caller]
    pub fn number(&self, pointer: &str) -> u64 {
        let value = self.json.pointer(pointer).and_then(Value::as_u64);
        value.unwrap_or_else(|| panic!("no number {pointer} in {}", self.json))
    }

    /// A number of one operation's object.
    #[track_caller]
    pub fn of(&self, operation: &str, algorithm: &str, field: &str) -> u64 {
        let all = self.json["operations"].as_array().expect("operations");
        let found = all.iter().find(|o| o["operation"] == operation && o["algorithm"] == algorithm);
        let value = found.and_then(|o| o[field].as_u64());
        value.unwrap_or_else(|| panic!("no {operation} {algorithm} {field} in {}", self.json))
    }
}
