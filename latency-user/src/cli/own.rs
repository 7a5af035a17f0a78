//! The tracer's own process: its cost, its limits.

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
