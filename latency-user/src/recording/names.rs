//! Names of threads, read now and then while they live.

use hashbrown::HashMap;

/// Names of so many threads are kept at a time.
const MAX_NAMES: usize = 64 << 10;
/// A thread's name is read again after so long: threads rename themselves when they have started.
pub(super) const NAME_AGE_NS: u64 = 1_000_000_000;
/// What stands for a thread's name where there was no room for another.
pub(super) const CATCH_ALL_NAME: &str = "[other]";

/// Names of threads as indices. The memory is bounded, however long the run.
#[derive(Clone, Default, Debug)]
pub(super) struct Names {
    names: Vec<String>,
    ids: HashMap<String, u32>,
    /// For each thread its name, and when that was read.
    threads: HashMap<u32, (u32, u64)>,
}

impl Names {
    /// The name of a thread, as an index.
    pub(super) fn of_thread(
        &mut self,
        tid: u32,
        now_ns: u64,
        comm_of: &mut dyn FnMut(u32) -> String,
    ) -> u32 {
        let known = self.threads.get(&tid).copied();
        if let Some((name, read_ns)) = known
            && now_ns.saturating_sub(read_ns) < NAME_AGE_NS
        {
            return name;
        }
        let comm = comm_of(tid);
        let name = match known {
            // The thread is gone: it keeps the name that it had.
            Some((name, _)) if comm.is_empty() => name,
            _ => self.id(&comm),
        };
        if self.threads.len() >= MAX_NAMES {
            self.threads.clear();
        }
        self.threads.insert(tid, (name, now_ns));
        name
    }

    /// The index of a name.
    pub(super) fn id(&mut self, name: &str) -> u32 {
        if let Some(&id) = self.ids.get(name) {
            return id;
        }
        // A name for each of very many threads: the rest share one.
        let name = if self.names.len() < MAX_NAMES { name } else { CATCH_ALL_NAME };
        if let Some(&id) = self.ids.get(name) {
            return id;
        }
        let id = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.ids.insert(name.to_owned(), id);
        id
    }

    /// The name that a thread had last.
    pub(super) fn comm(&self, tid: u32) -> String {
        let name = self.threads.get(&tid).and_then(|thread| self.names.get(thread.0 as usize));
        name.cloned().unwrap_or_default()
    }

    /// A name by its index.
    pub(super) fn get(&self, id: u32) -> String {
        self.names.get(id as usize).cloned().unwrap_or_default()
    }
}
