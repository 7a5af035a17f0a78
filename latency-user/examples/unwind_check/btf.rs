//! Offsets of the kernel's fields, by a plain search through its type information.

use anyhow::{Context as _, Result};
use latency_user::attach::unwind::ReturnProbeOffsets;

/// The fields that hold replaced return addresses.
pub fn return_probe_offsets() -> Result<ReturnProbeOffsets> {
    let bytes = std::fs::read("/sys/kernel/btf/vmlinux")?;
    let find = |structure: &str, field: &str| {
        member(&bytes, structure, field).with_context(|| format!("{structure}.{field}"))
    };
    Ok(ReturnProbeOffsets {
        utask: find("task_struct", "utask")?,
        return_instances: find("uprobe_task", "return_instances")?,
        stack: find("return_instance", "stack")?,
        original: find("return_instance", "orig_ret_vaddr")?,
        next: find("return_instance", "next")?,
    })
}

/// Offset in bytes of a named member, Documentation/bpf/btf.rst.
fn member(bytes: &[u8], structure: &str, field: &str) -> Option<u32> {
    let word = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let header = word(4)? as usize;
    let (types, types_end) = (header + word(8)? as usize, word(8)? as usize + word(12)? as usize);
    let strings = header + word(16)? as usize;
    let is_named = |offset: u32, name: &str| {
        let at = strings + offset as usize;
        bytes
            .get(at..at + name.len() + 1)
            .is_some_and(|found| found.starts_with(name.as_bytes()) && found.ends_with(&[0]))
    };
    let mut at = types;
    while at < header + types_end {
        let (name, info) = (word(at)?, word(at + 4)?);
        let entries = info as usize & 0xffff;
        let kind = info >> 24 & 0x1f;
        let body = at + 12;
        if kind == 4 && is_named(name, structure) {
            for entry in (body..body + 12 * entries).step_by(12) {
                if is_named(word(entry)?, field) {
                    return Some((word(entry + 8)? & 0xff_ffff) / 8);
                }
            }
        }
        let extra = match kind {
            1 | 14 | 17 => 4,
            3 => 12,
            4 | 5 | 15 | 19 => 12 * entries,
            6 | 13 => 8 * entries,
            _ => 0,
        };
        at = body + extra;
    }
    None
}
