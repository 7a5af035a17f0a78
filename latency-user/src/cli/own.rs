//! The tracer's own process: its cost, its limits, its CPUs.

/// Raises the limit of open files as far as it goes: every file that the target maps is held open.
pub fn raise_open_files() {
    // SAFETY: a valid pointer for both calls; where they fail, the limit stays as it is.
    unsafe {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// A set of CPUs, one bit each: as many as Linux can be built for.
type CpuSet = [u64; 8192 / 64];

const NO_CPUS: CpuSet = [0; 8192 / 64];

/// Keeps this thread, and those that it starts, off the CPUs that a process's threads may run on, if it may
/// run on others: what the tracer does itself does not cost the target time then. Where threads are bound to
/// no CPU, or the kernel tells nothing, all stays as it is.
pub fn keep_off_cpus_of(pid: u32) {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return };
    let ids = threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let Some(own) = cpus_of(0) else { return };
    if let Some(others) = without(&own, ids.filter_map(cpus_of)) {
        // SAFETY: a pointer to so many bytes. Should it fail, the thread may run where it could before.
        unsafe { libc::sched_setaffinity(0, size_of::<CpuSet>(), others.as_ptr().cast()) };
    }
}

/// The CPUs that a thread may run on; 0 is the calling one.
fn cpus_of(tid: libc::pid_t) -> Option<CpuSet> {
    let mut cpus = NO_CPUS;
    // SAFETY: a pointer to so many bytes.
    let result =
        unsafe { libc::sched_getaffinity(tid, size_of::<CpuSet>(), cpus.as_mut_ptr().cast()) };
    (result == 0).then_some(cpus)
}

/// Those of `own` that are in none of `others`; `None` if these are all of them or none.
fn without(own: &CpuSet, others: impl Iterator<Item = CpuSet>) -> Option<CpuSet> {
    let mut left = *own;
    for cpus in others {
        left.iter_mut().zip(cpus).for_each(|(left, cpus)| *left &= !cpus);
    }
    (left != *own && left != NO_CPUS).then_some(left)
}

/// CPU time of this process, in nanoseconds.
pub fn cpu_ns() -> u64 {
    // SAFETY: a struct of plain integers, filled by the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}

/// The most memory this process had, in bytes.
pub fn peak_memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|text| text.trim().strip_suffix("kB"))
        .and_then(|text| text.trim().parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Check that only CPUs of no thread are left, and that nothing changes where there are none, or all.
    #[test]
    fn cpus_without() {
        let set = |cpus: &[usize]| {
            let mut bits = NO_CPUS;
            cpus.iter().for_each(|cpu| bits[cpu / 64] |= 1 << (cpu % 64));
            bits
        };
        let own = set(&[0, 1, 2, 70]);
        let others = |threads: &[&[usize]]| without(&own, threads.iter().map(|cpus| set(cpus)));
        assert_eq!(others(&[&[0], &[70, 71]]), Some(set(&[1, 2])));
        assert_eq!(others(&[&[0, 1], &[2, 70]]), None, "it has to run somewhere");
        assert_eq!(others(&[&[3]]), None, "it is off these already");
        assert_eq!(others(&[]), None);
    }

    /// Check that the kernel tells this thread's CPUs.
    #[test]
    fn own_cpus() {
        assert!(cpus_of(0).is_some_and(|cpus| cpus.iter().any(|bits| *bits != 0)));
        assert_eq!(cpus_of(libc::pid_t::MAX), None);
    }
}
