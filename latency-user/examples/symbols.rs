//! How long it takes to read the symbols of files, and with `--lines` their debug information:
//!
//!     cargo run --release -p latency-user --example symbols -- /usr/bin/node

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use latency_user::symbolize::{Module, Origins, RawStack, Symbolizer};
use latency_user::target::Root;

const START: u64 = 0x7f00_0000_0000;
const ADDRESSES: u64 = 1000;

fn main() -> anyhow::Result<()> {
    let (options, files): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|word| word.starts_with("--"));
    for path in files {
        let file = File::open(&path)?;
        let bytes = file.metadata()?.len();
        let module = Module {
            start: START,
            end: START + bytes,
            name: path.clone(),
            path: PathBuf::from(&path),
            file: Some(Arc::new(file)),
            ..Module::default()
        };
        let lines = options.iter().any(|option| option == "--lines");
        let origins = Origins { roots: vec![Root::own()?], lines, ..Origins::default() };
        let frames = (0..ADDRESSES).map(|at| START + bytes * at / ADDRESSES).collect();
        let started = Instant::now();
        let mut symbolizer = Symbolizer::new(vec![module], origins);
        let stacks = symbolizer.resolve(&[RawStack { frames, ..RawStack::default() }]);
        let took_ms = started.elapsed().as_secs_f64() * 1e3;
        let frames = &stacks[0].frames;
        let named = frames.iter().filter(|frame| frame.function.is_some()).count();
        println!("{path}: {took_ms:.1} ms; {named} of {} frames named", frames.len());
        for note in symbolizer.take_notes() {
            println!("  {note}");
        }
    }
    Ok(())
}
