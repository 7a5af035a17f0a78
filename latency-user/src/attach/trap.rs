//! What a pair of probes costs whoever calls the probed function, measured on the spot: on a
//! function of the tracer's own, with the same kind of probe.

use std::fs::File;
use std::hint::black_box;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;

use aya::maps::Array;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use serde::{Deserialize, Serialize};

use super::scheduler::monotonic_ns;
use super::{AttachError, Mode, Session, Site, object};
use crate::target::parse_maps;

/// Calls measured with hot caches, and with cold ones.
const CALLS: usize = 64;

/// Bytes that are compressed between two calls. That takes about as long as a signature, and runs
/// through more code and tables than the nearest caches hold, as cryptography does.
const WORK_BYTES: usize = 16 << 10;

// A probe on `nop` is emulated, as one on the first instruction of most functions is.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
core::arch::global_asm!(
    ".pushsection .text.latency_trapped,\"ax\",@progbits",
    ".globl latency_trapped",
    ".hidden latency_trapped",
    ".type latency_trapped, @function",
    ".balign 16",
    "latency_trapped:",
    "nop",
    "ret",
    ".size latency_trapped, . - latency_trapped",
    ".popsection",
);

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
unsafe extern "C" {
    safe fn latency_trapped();
}

/// What a caller pays for the probes of an operation, in nanoseconds: medians. A program's clock
/// does not see all of it, since it is read after the trap into the kernel and before the way back.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TrapCost {
    /// The part outside of the two clock readings, called again at once.
    pub hot_outside_ns: u64,
    /// The same after work that left nothing of the kernel in the nearest caches.
    pub cold_outside_ns: u64,
    /// The whole of it, called again at once.
    pub hot_pair_ns: u64,
    /// The same after that work.
    pub cold_pair_ns: u64,
}

impl TrapCost {
    /// Durations from here on, in nanoseconds, find the caches cold at their end.
    const COLD_FROM_NS: u64 = 20_000;

    /// What the caller's clock shows for an operation that lasted `duration_ns` by the programs'
    /// clock. The longer it lasted, the less of the kernel the caches still hold; the result never
    /// falls while the duration rises, so that percentiles stay percentiles.
    pub const fn as_called_ns(&self, duration_ns: u64) -> u64 {
        let (hot_ns, cold_ns) = (self.hot_outside_ns, self.cold_outside_ns);
        let more_ns = cold_ns.saturating_sub(hot_ns);
        let outside_ns = if duration_ns >= Self::COLD_FROM_NS {
            hot_ns.saturating_add(more_ns)
        } else {
            hot_ns.saturating_add(more_ns.saturating_mul(duration_ns) / Self::COLD_FROM_NS)
        };
        duration_ns.saturating_add(outside_ns)
    }
}

/// Measures the cost of probes in the session's mode. Takes about ten milliseconds. The function
/// stays probed as long as the session lives: closing a link takes as long as any, and is best done
/// with the others.
///
/// # Errors
/// The kernel refused the probes.
pub fn measure(session: &mut Session) -> Result<TrapCost, AttachError> {
    let Some((file, offset)) = own_function() else {
        return Err(AttachError::Object("the tracer's own executable cannot be found".into()));
    };
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let (own, sites) = (std::process::id(), [Site { offset, cookie: 0 }]);
    match session.mode {
        Mode::Session => session.attach_multi(own, &path, &sites, object::TRAP_SESSION)?,
        Mode::Multi => session.attach_multi(own, &path, &sites, object::TRAP_MULTI)?,
        Mode::Perf => session.attach_perf(own, &path, &sites, ["trap_return", "trap_entry"])?,
    }
    let broken = |error: &dyn std::fmt::Display| AttachError::Object(error.to_string());
    let map =
        session.ebpf.map("TRAP_TIMES").ok_or_else(|| broken(&"the map TRAP_TIMES is missing"))?;
    let times: Array<_, u64> = Array::try_from(map).map_err(|error| broken(&error))?;
    let time = |index| times.get(&index, 0).map_err(|error| broken(&error));
    let mut work = Work::new();
    let mut costs = [(); 2].map(|()| (Vec::new(), Vec::new()));
    for call in 0..2 * CALLS {
        let is_cold = call % 2 == 1;
        if is_cold {
            work.go_on();
        } else {
            latency_trapped();
        }
        let begin_ns = monotonic_ns();
        latency_trapped();
        let end_ns = monotonic_ns();
        let (entered_ns, returned_ns) = (time(0)?, time(1)?);
        let is_seen = begin_ns <= entered_ns && entered_ns <= returned_ns && returned_ns <= end_ns;
        if !is_seen {
            return Err(broken(&"a call of the tracer's own was not seen by its probes"));
        }
        let (outside, whole) = &mut costs[usize::from(is_cold)];
        whole.push(end_ns - begin_ns);
        outside.push(end_ns - begin_ns - (returned_ns - entered_ns));
    }
    let [(mut hot, mut hot_pair), (mut cold, mut cold_pair)] = costs;
    let cost = TrapCost {
        hot_outside_ns: median(&mut hot),
        cold_outside_ns: median(&mut cold),
        hot_pair_ns: median(&mut hot_pair),
        cold_pair_ns: median(&mut cold_pair),
    };
    log::debug!("probes cost their caller {cost:?}");
    Ok(cost)
}

fn median(values: &mut [u64]) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// Where in this executable the measured function lies.
fn own_function() -> Option<(File, u64)> {
    let address = latency_trapped as *const () as u64;
    let maps = std::fs::read("/proc/self/maps").ok()?;
    let mapping =
        parse_maps(&maps).find(|mapping| (mapping.start..mapping.end).contains(&address))?;
    let file = File::open("/proc/self/exe").ok()?;
    Some((file, address - mapping.start + mapping.offset))
}

/// Work that leaves the caches as cryptography does.
struct Work {
    text: Vec<u8>,
    compressed: Vec<u8>,
}

impl Work {
    fn new() -> Self {
        // Neither constant nor noise: there is something to find, and to search for.
        let text = (0..WORK_BYTES as u32).map(|at| (at.wrapping_mul(at) >> 7) as u8).collect();
        Self { text, compressed: Vec::new() }
    }

    fn go_on(&mut self) {
        self.compressed.clear();
        let mut encoder = DeflateEncoder::new(&mut self.compressed, Compression::fast());
        // Into memory, where nothing fails.
        let _ = encoder.write_all(&self.text);
        drop(encoder);
        black_box(&self.compressed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        /// Check that no costs and durations overflow, and that longer stays longer.
        #[test]
        fn monotonic(hot: u64, cold: u64, a: u64, b: u64) {
            let cost =
                TrapCost { hot_outside_ns: hot, cold_outside_ns: cold, ..TrapCost::default() };
            let (short, long) = (a.min(b), a.max(b));
            assert!(cost.as_called_ns(short) <= cost.as_called_ns(long));
            assert!(cost.as_called_ns(a) >= a);
        }
    }

    /// Check that a short call pays the hot price and a long one the cold one.
    #[test]
    fn by_duration() {
        let cost = TrapCost { hot_outside_ns: 500, cold_outside_ns: 2_500, ..TrapCost::default() };
        assert_eq!(cost.as_called_ns(0), 500);
        assert_eq!(cost.as_called_ns(10_000), 11_500);
        assert_eq!(cost.as_called_ns(20_000), 22_500);
        assert_eq!(cost.as_called_ns(1_000_000), 1_002_500);
        assert_eq!(TrapCost::default().as_called_ns(7), 7);
    }

    /// Check that the measured function is found in this very binary, and holds what it should.
    #[test]
    fn finds_itself() {
        use std::os::unix::fs::FileExt as _;
        let (file, offset) = own_function().expect("found");
        let mut code = [0; 2];
        file.read_exact_at(&mut code, offset).expect("read");
        assert_eq!(code, [0x90, 0xc3]);
    }
}
