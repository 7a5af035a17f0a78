//! Files whose rows take long to compile: one thread does it, one file after another.

use std::fs::File;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::{CompileError, FileKey, FileRows, compile};

/// What became of a file.
pub struct Compiled {
    /// The file.
    pub file: FileKey,
    /// The path that it was mapped by.
    pub path: PathBuf,
    /// Its rows.
    pub rows: Result<FileRows, CompileError>,
}

/// The files that are being compiled.
#[derive(Default)]
pub struct LargeFiles {
    worker: Option<Worker>,
    pending: usize,
}

struct Worker {
    files: Sender<(FileKey, PathBuf, File)>,
    compiled: Receiver<Compiled>,
}

impl Worker {
    /// Its thread ends with it, once the file it is at is done.
    fn start() -> Self {
        let (files, wanted) = channel::<(FileKey, PathBuf, File)>();
        let (done, compiled) = channel();
        std::thread::spawn(move || {
            yield_to_others();
            for (file, path, open) in wanted {
                let rows = compile(open);
                if done.send(Compiled { file, path, rows }).is_err() {
                    return;
                }
            }
        });
        Self { files, compiled }
    }
}

impl LargeFiles {
    /// Has a file compiled.
    pub fn compile(&mut self, file: FileKey, path: PathBuf, open: File) {
        let worker = self.worker.get_or_insert_with(Worker::start);
        // It ends before this side only by a panic; then the file stays without rows.
        self.pending += usize::from(worker.files.send((file, path, open)).is_ok());
    }

    /// How many are not finished.
    pub const fn pending(&self) -> usize {
        self.pending
    }

    /// Those that were finished since the last call.
    pub fn finished(&mut self) -> Vec<Compiled> {
        let Some(worker) = &self.worker else { return Vec::new() };
        let finished: Vec<_> = worker.compiled.try_iter().collect();
        self.pending = self.pending.saturating_sub(finished.len());
        finished
    }
}

/// Gives this thread a tenth of what others get of a CPU that they want: the target, above all.
fn yield_to_others() {
    const NICE: i32 = 10;
    // SAFETY: no memory is passed. On Linux, 0 is the calling thread; nobody can be refused to be
    // nicer, and should it fail, it only takes more of the CPU.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}
