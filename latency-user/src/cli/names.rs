//! What names are made of, held open from the start of the trace: the target may exit before its
//! end, and files may be replaced.

use std::sync::Arc;

use anyhow::Result;

use super::args::RecordArgs;
use crate::recording::Recording;
use crate::symbolize::{Debuginfod, Origins, PerfMapOf, RawStack, Symbolizer, modules_of};
use crate::target::{Mapping, Root, Target};

/// Names for the addresses of one target.
pub struct Names {
    symbolizer: Symbolizer,
    seen: Arc<Vec<Mapping>>,
}

impl Names {
    /// Holds what the target maps, and the root folders to look for more in.
    ///
    /// # Errors
    /// Servers are to be asked for debug information, and cannot.
    pub fn hold(target: &Target, args: &RecordArgs) -> Result<Self> {
        let debuginfod = args.debuginfod.then(Debuginfod::prepare).transpose()?;
        // Without a root, there are fewer names.
        let mut roots: Vec<Root> = Root::of(target.pid).into_iter().collect();
        let own = Root::own().ok();
        roots.extend(own.filter(|own| !roots.iter().any(|root| root.is_same(own))));
        let perf_map = Some(PerfMapOf { own_pid: target.own_pid, uid: target.uid });
        let origins = Origins { roots, lines: args.lines, perf_map, debuginfod };
        let mut names =
            Self { symbolizer: Symbolizer::new(Vec::new(), origins), seen: Arc::default() };
        names.see(target);
        Ok(names)
    }

    /// Takes note of what the target maps now, as of its last scan. What it has unmapped since is
    /// still known.
    pub fn see(&mut self, target: &Target) {
        self.take(target, &target.last_mappings);
    }

    fn take(&mut self, target: &Target, mappings: &Arc<Vec<Mapping>>) {
        // The cheap question first: this is asked four times a second.
        if !Arc::ptr_eq(&self.seen, mappings) && self.seen != *mappings {
            self.symbolizer.extend(modules_of(mappings, &target.files));
        }
        self.seen = Arc::clone(mappings);
    }

    /// Puts named stacks into a recording, and names its locks.
    pub fn give(&mut self, target: &Target, stacks: &[RawStack], recording: &mut Recording) {
        // A target that is gone maps what it last did.
        if let Ok(mappings) = target.mappings()
            && target.same_process()
        {
            self.take(target, &Arc::new(mappings));
        }
        recording.stacks = self.symbolizer.resolve(stacks);
        for lock in &mut recording.locks {
            lock.name = self.symbolizer.name_data(lock.address);
        }
        recording.warnings.extend(self.symbolizer.take_notes());
    }
}
