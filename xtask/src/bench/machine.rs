//! The machine that the figures are of.

use std::{fmt, fs, process::Command};

use serde_json::{Value, json};

use crate::process;

/// What a reader needs to know of the machine. Figures of two machines are not to be compared.
pub struct Machine {
    kernel: String,
    cpu: String,
    cores: usize,
    virtual_machine: bool,
    load: String,
    openssl: String,
}

impl Machine {
    /// This one, now.
    pub fn here() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let cpus = read("/proc/cpuinfo");
        let field = |name: &str| {
            let line = cpus.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let openssl = process::probe(Command::new("openssl").arg("version"));
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpu: field("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            virtual_machine: field("flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            load: read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
            openssl: openssl.map_or_else(|| "no openssl".into(), |line| line.trim().to_owned()),
        }
    }

    /// Load average over a minute.
    pub fn load(&self) -> &str {
        &self.load
    }

    /// As an object.
    pub fn json(&self) -> Value {
        json!({
            "kernel": self.kernel,
            "cpu": self.cpu,
            "cores": self.cores,
            "virtual_machine": self.virtual_machine,
            "load_before": self.load.parse::<f64>().ok(),
            "openssl": self.openssl,
        })
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kernel, cpu, cores, virtual_machine, openssl, .. } = self;
        let place = if *virtual_machine { ", in a virtual machine" } else { "" };
        writeln!(f, "Linux {kernel}, {cpu}, {cores} cores{place}; {openssl}.")
    }
}
