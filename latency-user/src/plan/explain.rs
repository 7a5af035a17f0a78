//! Why a plan is empty, and what could help.

use super::{Plan, PlanError};
use crate::target::{ElfFile, Target};

impl Plan {
    /// Explains a plan without probes: what was found instead, and what the user can do.
    pub fn explain_empty(&self, target: &Target) -> PlanError {
        let who = format!("process {} ({})", target.pid, target.comm);
        PlanError::NothingToProbe(explain(&who, &target.files, self))
    }
}

/// Whether a file holds an OpenSSL of its own: a version text alone does not tell, since programs
/// that use the library also carry the version they were built with.
pub(super) fn holds_own_copy(file: &ElfFile) -> bool {
    let uses_library = |name: &String| name.starts_with("libcrypto") || name.starts_with("libssl");
    file.facts.openssl_version.is_some() && !file.facts.needed.iter().any(uses_library)
}

pub(super) fn explain(who: &str, files: &[ElfFile], plan: &Plan) -> String {
    let mut text = format!(
        "nothing to trace: no file that {who} runs offers an OpenSSL sign or verify function"
    );
    let copies: Vec<&ElfFile> = files.iter().filter(|file| holds_own_copy(file)).collect();
    for file in &copies {
        let version = file.facts.openssl_version.as_deref().unwrap_or("OpenSSL");
        let build_id = file.facts.build_id.as_deref().unwrap_or("none");
        text.push_str(&format!(
            ". {path} (build id {build_id}) holds {version}, but not the names of its functions: \
             it is stripped. Run an unstripped build of it, or find the offset of its signing \
             function in the debug symbols of that build id and give --probe {name}:0xOFFSET=sign",
            path = file.path.display(),
            name = file.name(),
        ));
    }
    if let Some(skipped) = plan.skipped.first() {
        let name = files.get(skipped.file).map(ElfFile::name).unwrap_or_default();
        text.push_str(&format!(
            ". {} known functions were passed over, such as {} in {name}: {}",
            plan.skipped.len(),
            skipped.symbol,
            skipped.reason
        ));
    }
    for file in files {
        if let Some(reason) = &file.facts.unreadable {
            text.push_str(&format!(". {} could not be read: {reason}", file.path.display()));
        }
    }
    if copies.is_empty() && plan.skipped.is_empty() {
        let names: Vec<String> = files.iter().take(8).map(ElfFile::name).collect();
        let more = if files.len() > 8 { ", ..." } else { "" };
        if let Some(main) = files.iter().find(|file| file.is_main_executable) {
            text.push_str(&format!(
                ". Its program is {} (build id {})",
                main.path.display(),
                main.facts.build_id.as_deref().unwrap_or("none")
            ));
        }
        text.push_str(&format!(
            ". It runs code from {}{more}. If a child process signs, give its PID (`pgrep -P` \
             lists them); if the program brings its own cryptography, give --probe FILE:SYMBOL=sign",
            if names.is_empty() { "no file".to_owned() } else { names.join(", ") }
        ));
    }
    text
}
