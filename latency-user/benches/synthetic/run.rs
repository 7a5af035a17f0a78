//! A whole run: what is known at its begin and its end, and the recording of it.

#![allow(dead_code, reason = "each bench uses a part of it")]

use std::collections::HashMap;
use std::sync::Arc;

use latency_common::counter::Counter;
use latency_user::attach::TrapCost;
use latency_user::recording::{
    EndedBy, Finish, Frame, Header, OwnCost, Probe, Recording, RecordingBuilder, Stack, Target,
};

use crate::records::{self, APART_NS, Numbers, START_NS};

/// A builder that knows what a tracer does when tracing begins.
pub fn builder() -> RecordingBuilder {
    let probe = |symbol: &str, operation: &str, offset| Probe {
        file: "/usr/lib/x86_64-linux-gnu/libcrypto.so.3".into(),
        symbol: symbol.into(),
        offset,
        site_offset: offset + 4,
        operation: operation.into(),
        ..Probe::default()
    };
    RecordingBuilder::new(Header {
        start_ns: START_NS,
        target: Target { pid: 4242, comm: "keyservice".into(), threads: 16, ..Target::default() },
        operations: vec!["sign".into(), "verify".into()],
        probes: vec![
            probe("EVP_DigestSign", "sign", 0x001c_0a30),
            probe("EVP_DigestVerify", "verify", 0x001c_1230),
        ],
        trap_cost: TrapCost {
            hot_outside_ns: 450,
            cold_outside_ns: 2_100,
            hot_pair_ns: 930,
            cold_pair_ns: 4_300,
        },
        has_ledger: true,
        ..Header::default()
    })
}

/// The end of a run with so many operations, and no more waits than that.
pub fn finish(operations: usize) -> Finish {
    let mut counters = [0; Counter::COUNT as usize];
    counters[Counter::Completed as usize] = operations as u64;
    Finish {
        end_ns: START_NS + 20_000_000 + operations as u64 * APART_NS,
        ended_by: EndedBy::Duration,
        exit_status: None,
        counters,
        recursion_misses: 0,
        in_progress: 0,
        wait_totals: Default::default(),
        probe_hits: vec![operations as u64; 2],
        own_cost: OwnCost::default(),
        warnings: Vec::new(),
    }
}

/// A recording of so many operations and as many waits, with this many stacks.
pub fn recording(operations: usize, stacks: u64) -> Recording {
    let mut builder = builder();
    for record in records::operations(operations) {
        builder.operation(&record);
    }
    for record in records::waits(operations, stacks) {
        builder.wait(&record, &mut records::comm_of, &records::is_live);
    }
    let mut recording = builder.finish(finish(operations));
    recording.stacks = self::stacks(stacks);
    recording
}

/// Stacks with ids from 1 on, each another one, of 12 to 27 frames: a tree that spreads from its root
/// on, as those of a service with a few kinds of requests do.
fn stacks(count: u64) -> Vec<Stack> {
    const MODULES: [&str; 4] = ["keyservice", "libcrypto.so.3", "libssl.so.3", "libc.so.6"];
    let mut numbers = Numbers(3);
    let frame = |depth: u64, branch: u64| {
        let address = (depth << 16) | (branch << 4);
        let module = MODULES[(depth as usize / 7) % MODULES.len()];
        Arc::new(Frame {
            address: 0x7f00_0000_0000 + address,
            // A frame without a name here and there, as in stripped files.
            function: (branch % 16 != 7).then(|| format!("layer_{depth}_handle_branch_{branch}")),
            module: module.into(),
            module_address: address,
            ..Frame::default()
        })
    };
    // As the symbolizer does: one place is one frame, in all its stacks.
    let mut known = HashMap::new();
    let mut frame = |depth: u64, branch: u64| {
        Arc::clone(known.entry((depth, branch)).or_insert_with(|| frame(depth, branch)))
    };
    let mut stack = |id: u64| {
        let depth = 12 + numbers.below(16);
        let mut frames: Vec<Arc<Frame>> = (0..depth)
            .map(|depth| frame(depth, numbers.below(if depth < 6 { 2 } else { 4 })))
            .collect();
        // Its own leaf makes it another one than all others.
        frames.push(frame(depth, id));
        frames.reverse();
        Stack { id, frames, ..Stack::default() }
    };
    (1..=count).map(&mut stack).collect()
}
