//! Debian's packages: which are missing, and installing them.

use std::{fs, process::Command};

use anyhow::{Result, bail};

use crate::process;

/// Whether this is Debian or a distribution made from it.
pub fn is_debian() -> bool {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    release
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE=")))
        .flat_map(|value| value.trim_matches('"').split_whitespace())
        .any(|id| id == "debian")
}

/// Those of `packages` that are not installed.
pub fn missing<'a>(packages: &[&'a str]) -> Vec<&'a str> {
    let installed = |package: &&&str| {
        process::probe(Command::new("dpkg-query").args(["-W", "-f=${db:Status-Status}", package]))
            .is_some_and(|status| status.split_whitespace().any(|word| word == "installed"))
    };
    packages.iter().filter(|package| !installed(package)).copied().collect()
}

/// Whether every one of `packages` can be installed from the configured archives.
pub fn available(packages: &[&str]) -> bool {
    packages.iter().all(|package| {
        process::probe(Command::new("apt-cache").args(["policy", package]))
            .is_some_and(|text| text.contains("Candidate:") && !text.contains("Candidate: (none)"))
    })
}

/// Brings the lists of packages up to date.
pub fn update() -> Result<()> {
    process::run(process::root_command("apt-get")?.args(["update", "-qq"]))
}

/// Installs packages without asking.
pub fn install(packages: &[&str]) -> Result<()> {
    process::run(
        process::root_command("env")?
            .args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-qq", "-y"])
            .arg("--no-install-recommends")
            .args(packages),
    )
}

/// Makes sure that `packages` are there for `purpose`: installs them on Debian, names them elsewhere.
///
/// `programs` decides elsewhere: what to look for on `PATH`, with what it comes from.
pub fn require(packages: &[&str], programs: &[(&str, &str)], purpose: &str) -> Result<()> {
    if is_debian() {
        let missing = missing(packages);
        if missing.is_empty() {
            return Ok(());
        }
        eprintln!("xtask: installing {} for {purpose}", missing.join(", "));
        update()?;
        return install(&missing);
    }
    let absent: Vec<_> = programs
        .iter()
        .filter(|(probe, _)| process::probe(Command::new("sh").args(["-c", probe])).is_none())
        .map(|(_, name)| *name)
        .collect();
    if !absent.is_empty() {
        bail!("{purpose} needs {}: install it with your package manager", absent.join(", "));
    }
    Ok(())
}

/// The probes that tell, where there is no dpkg, whether C programs for libcrypto can be compiled.
pub const C_PROBES: [(&str, &str); 2] = [
    ("command -v cc", "a C compiler (`cc`)"),
    (
        "echo '#include <openssl/evp.h>' | cc -E -x c - -o /dev/null",
        "OpenSSL's headers (libssl-dev, openssl-devel)",
    ),
];
