//! Attaching to the files that the target runs code from: those that it has, and those that it loads later.

use anyhow::{Context as _, Result};

use super::{Tracing, refuse_hazards};
use crate::attach::Site;
use crate::cli::describe::{library, probe_info};

impl Tracing<'_> {
    /// Attaches what the plan has gained, file by file.
    pub(super) fn attach_new(&mut self) -> Result<()> {
        let new = &self.plan.probes[self.attached..];
        let mut files: Vec<usize> = new.iter().map(|probe| probe.file).collect();
        files.dedup();
        for index in files {
            let sites: Vec<Site> = new
                .iter()
                .filter(|probe| probe.file == index)
                .map(|probe| Site { offset: probe.site_offset, cookie: probe.cookie.pack() })
                .collect();
            let file = &self.target.files[index];
            self.session
                .attach(&file.file, &sites)
                .with_context(|| format!("cannot probe {}", file.path.display()))?;
        }
        self.attached = self.plan.probes.len();
        Ok(())
    }

    /// Looks for libraries loaded since, and probes them.
    pub(super) fn rescan(&mut self) {
        // A target that is gone ends the run by its pidfd.
        let Ok(new) = self.target.rescan() else { return };
        self.scheduler.see(&self.target);
        if let Err(error) = self.scheduler.refresh(&self.target, &mut self.session) {
            self.warn(format!("stacks through files loaded now may be cut short: {error:#}"));
        }
        if new.is_empty() {
            return;
        }
        let operations = self.plan.operations.len();
        let warned = self.plan.warnings.len();
        self.plan.extend(&self.target.files);
        if self.plan.probes.len() == self.attached {
            return;
        }
        if let Err(error) = refuse_hazards(&self.target, &self.plan) {
            self.warn(format!("{error:#}"));
            self.plan.probes.truncate(self.attached);
            return;
        }
        let names: Vec<String> =
            new.iter().map(|index| self.target.files[*index].path.display().to_string()).collect();
        let late = format!(
            "{} was loaded {:.1} s after the start: its operations before that are not counted",
            names.join(", "),
            self.started.elapsed().as_secs_f64()
        );
        let before = self.attached;
        if let Err(error) = self.attach_new() {
            self.plan.probes.truncate(before);
            self.warn(format!("{error:#}"));
            return;
        }
        self.builder.extend_operations(self.plan.operations[operations..].iter().cloned());
        let late = std::iter::once(late).chain(self.plan.warnings[warned..].iter().cloned());
        for warning in late.collect::<Vec<_>>() {
            self.warn(warning);
        }
        let files = &self.target.files;
        self.builder
            .extend_probes(self.plan.probes[before..].iter().map(|probe| probe_info(probe, files)));
        self.builder.extend_libraries(new.iter().filter_map(|index| library(&files[*index])));
    }
}
