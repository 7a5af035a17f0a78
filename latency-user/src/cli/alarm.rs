//! When the event loop wakes up: a timer of the kernel's. The runtime's own timers would wake it twice as
//! often: where a slot of their wheel begins, and once for each that is set.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Rings once each time that it is set.
pub struct Alarm {
    timer: AsyncFd<OwnedFd>,
}

impl Alarm {
    /// One that is not set.
    ///
    /// # Errors
    /// There are too many open files.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let timer = unsafe {
            libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK)
        };
        if timer < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a descriptor of this function's own.
        let timer = unsafe { OwnedFd::from_raw_fd(timer) };
        // SAFETY: an owned descriptor.
        let timer = unsafe { AsyncFd::register_with_interest(timer, Interest::READABLE) }?;
        Ok(Self { timer })
    }

    /// Rings at that time; at once if it is past.
    ///
    /// # Errors
    /// The kernel refuses; it has no reason to.
    pub fn set(&mut self, time: Instant) -> io::Result<()> {
        // 0 would turn it off.
        let wait = time.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        let value = libc::timespec {
            tv_sec: wait.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        };
        let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let setting = libc::itimerspec { it_interval: never, it_value: value };
        let timer = self.timer.get_ref().as_raw_fd();
        // SAFETY: `setting` outlives the call; the old setting is not asked for.
        match unsafe { libc::timerfd_settime(timer, 0, &raw const setting, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits until it rings.
    ///
    /// # Errors
    /// The runtime ends.
    pub async fn rings(&mut self) -> io::Result<()> {
        // Nothing is read: setting it again forgets that it rang, and the runtime hears of each ring once.
        self.timer.readable().await?.clear_ready();
        Ok(())
    }
}

/// Something to do now and then.
pub struct Every {
    period: Duration,
    next: Instant,
}

impl Every {
    /// First due a period after `begun`.
    pub fn new(period: Duration, begun: Instant) -> Self {
        Self { period, next: begun + period }
    }

    /// Whether its time has come. What comes late does not shift the next, except by more than a period:
    /// nothing is made up for.
    pub fn is_due(&mut self, now: Instant) -> bool {
        if now < self.next {
            return false;
        }
        self.next += self.period;
        if self.next <= now {
            self.next = now + self.period;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(10);

    /// Check that what is late keeps its beat, and what was missed is not made up for.
    #[test]
    fn keeps_the_beat() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut every = Every::new(PERIOD, begun);
        assert!(!every.is_due(at(9)));
        assert!(every.is_due(at(13)));
        assert!(!every.is_due(at(19)));
        assert!(every.is_due(at(20)));
        assert!(every.is_due(at(65)));
        assert!(!every.is_due(at(74)));
        assert!(every.is_due(at(75)));
    }

    /// Runs with a timer, for a minute at most.
    fn with_alarm<T>(what: impl AsyncFnOnce(Alarm) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let what = what(Alarm::new().unwrap());
            tokio::time::timeout(Duration::from_secs(60), what).await.expect("rings in time")
        })
    }

    /// Check that it rings once each time that it is set, not before its time, and at once where that is
    /// past.
    #[test]
    fn rings_once() {
        with_alarm(async |mut alarm| {
            let begun = Instant::now();
            for wait in [0, 1, 20] {
                let time = Instant::now() + Duration::from_millis(wait);
                alarm.set(time).unwrap();
                alarm.rings().await.unwrap();
                assert!(Instant::now() >= time);
                let again = tokio::time::timeout(Duration::from_millis(30), alarm.rings()).await;
                assert!(again.is_err(), "rang twice");
            }
            alarm.set(begun).unwrap();
            alarm.rings().await.unwrap();
        });
    }

    /// Check that one set again before its time rings at the new one only.
    #[test]
    fn set_again() {
        with_alarm(async |mut alarm| {
            alarm.set(Instant::now() + Duration::from_millis(1)).unwrap();
            std::thread::sleep(Duration::from_millis(5));
            let time = Instant::now() + Duration::from_millis(30);
            alarm.set(time).unwrap();
            alarm.rings().await.unwrap();
            assert!(Instant::now() >= time);
        });
    }
}
