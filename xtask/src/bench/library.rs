//! `library`: what decoding, aggregating, folding, symbolizing and recording cost, by the criterion
//! benches of `latency-user`.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::{
    settings::Settings,
    spread::Spread,
    table::{Cell, Table},
};
use crate::{process, workspace};

/// The benches, in the order in which a recording comes about.
const BENCHES: [&str; 5] = ["decode", "aggregate", "fold", "symbolize", "recording"];
const NANOSECONDS_PER_SECOND: f64 = 1e9;

/// Builds the benches and puts their programs into the folder of the workloads.
pub fn prepare(folder: &Path) -> Result<()> {
    let messages = process::output(workspace::cargo().args([
        "bench",
        "--package=latency-user",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]))?;
    for bench in BENCHES {
        let built = executable(&messages, bench)
            .with_context(|| format!("cargo has built no bench `{bench}`"))?;
        let program = folder.join(program(bench));
        // One that is left of an earlier run may still be root's.
        match fs::remove_file(&program) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => fs::copy(&built, &program).map(drop),
        }
        .with_context(|| program.display().to_string())?;
    }
    Ok(())
}

fn program(bench: &str) -> String {
    format!("library-{bench}")
}

/// Where cargo says that it has put the program of a bench.
fn executable(messages: &str, bench: &str) -> Option<PathBuf> {
    let built = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut built = built.filter(|message| {
        let target = &message["target"];
        target["kind"][0] == "bench" && target["name"] == bench
    });
    built.find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

/// Runs the benches one after another and reads what criterion has found.
pub fn measure(settings: &Settings) -> Result<Table> {
    let home = settings.folder.join("criterion");
    // What an earlier run has left is not to be taken for this one's.
    match fs::remove_dir_all(&home) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::create_dir(&home),
    }
    .with_context(|| home.display().to_string())?;
    let mut table = Table::new(
        "what the library does with one record, stack or address",
        [
            ("what", "what"),
            ("elements", "elements in one run"),
            ("element_ns", "time of one, ns"),
            ("elements_per_second", "a second"),
        ],
    );
    for bench in BENCHES {
        let mut command = Command::new(settings.program(&program(bench)));
        command.args(["--bench", "--noplot", "--warm-up-time"]).arg(settings.either("1", "0.2"));
        command.arg("--measurement-time").arg(settings.either("2", "0.5"));
        // Its progress is not of this command's kind; the figures are read from its files.
        let output = command.env("CRITERION_HOME", &home).output();
        let output = output.with_context(|| format!("the bench `{bench}` cannot run"))?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            bail!("the bench `{bench}` failed: {}: {}", output.status, stderr.trim());
        }
    }
    let mut found = Vec::new();
    find(&home, &mut found)?;
    let mut results: Vec<Measured> =
        found.iter().map(|folder| Measured::read(folder)).collect::<Result<_>>()?;
    let place = |bench: &str| BENCHES.iter().position(|known| *known == bench);
    results.sort_by(|left, right| {
        (place(&left.bench), &left.what).cmp(&(place(&right.bench), &right.what))
    });
    if let Some(missing) =
        BENCHES.iter().find(|bench| results.iter().all(|result| result.bench != **bench))
    {
        bail!("the bench `{missing}` has left no figures");
    }
    for result in results {
        let per_second = NANOSECONDS_PER_SECOND / result.element_ns.median;
        table.row(vec![
            Cell::Text(format!("{}: {}", result.bench, result.what)),
            Cell::Count(result.elements),
            Cell::Spread(Some(result.element_ns), 1),
            Cell::Count(per_second as u64),
        ]);
    }
    table.note(
        "Made-up records of 16 threads, by criterion: median (95 % confidence interval of the median). The \
         time of a file is with the wait until the disk has it.",
    );
    Ok(table)
}

/// What criterion has found of one thing.
struct Measured {
    /// Its group, which is called as the bench is.
    bench: String,
    /// What is done, as the bench calls it.
    what: String,
    /// What each iteration went through.
    elements: u64,
    /// Median of one of them in nanoseconds, with its confidence interval for smallest and largest.
    element_ns: Spread,
}

impl Measured {
    /// Reads the folder of one result.
    fn read(folder: &Path) -> Result<Self> {
        let json = |name: &str| -> Result<Value> {
            let path = folder.join(name);
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            serde_json::from_str(&text).with_context(|| path.display().to_string())
        };
        Self::of(&json("benchmark.json")?, &json("estimates.json")?)
            .with_context(|| format!("{} is not as criterion 0.8 writes it", folder.display()))
    }

    fn of(benchmark: &Value, estimates: &Value) -> Option<Self> {
        let elements = benchmark["throughput"]["Elements"].as_u64().filter(|count| *count > 0)?;
        let median = &estimates["median"];
        let interval = &median["confidence_interval"];
        let each = |value: &Value| Some(value.as_f64()? / elements as f64);
        // A thing is called by its function, by its parameter, or by both.
        let words = ["function_id", "value_str"].map(|key| benchmark[key].as_str());
        Some(Self {
            bench: benchmark["group_id"].as_str()?.to_owned(),
            what: words.into_iter().flatten().collect::<Vec<_>>().join(", "),
            elements,
            element_ns: Spread {
                median: each(&median["point_estimate"])?,
                min: each(&interval["lower_bound"])?,
                max: each(&interval["upper_bound"])?,
            },
        })
    }
}

/// The folders called `new` below this one: criterion has one for each thing that it measured.
fn find(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            if entry.file_name() == "new" {
                found.push(entry.path());
            } else {
                find(&entry.path(), found)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn benchmark() -> Value {
        json!({
            "group_id": "fold",
            "function_id": "stacks into lines",
            "value_str": "locks",
            "throughput": { "Elements": 10_000 },
        })
    }

    fn estimates() -> Value {
        let interval =
            json!({ "confidence_level": 0.95, "lower_bound": 9e6, "upper_bound": 1.2e7 });
        json!({ "median": { "confidence_interval": interval, "point_estimate": 1e7 } })
    }

    /// Check that the time is that of one element, and the name that of the function and parameter.
    #[test]
    fn measured() {
        let measured = Measured::of(&benchmark(), &estimates()).unwrap();
        assert_eq!(
            (&*measured.bench, &*measured.what, measured.elements),
            ("fold", "stacks into lines, locks", 10_000)
        );
        assert_eq!(measured.element_ns, Spread { median: 1000.0, min: 900.0, max: 1200.0 });
    }

    /// Check that a thing without elements is refused, rather than shown by the iteration.
    #[test]
    fn no_elements() {
        let mut benchmark = benchmark();
        benchmark["throughput"] = json!({ "Bytes": 10_000 });
        assert!(Measured::of(&benchmark, &estimates()).is_none());
        benchmark["throughput"] = json!({ "Elements": 0 });
        assert!(Measured::of(&benchmark, &estimates()).is_none());
    }

    /// Check that the bench is told from a library of the same name.
    #[test]
    fn executables() {
        let library = json!({ "target": { "kind": ["lib"], "name": "fold" }, "executable": null });
        let bench =
            json!({ "target": { "kind": ["bench"], "name": "fold" }, "executable": "/a/b" });
        let messages = format!("{library}\nnot JSON\n{bench}\n");
        assert_eq!(executable(&messages, "fold"), Some("/a/b".into()));
        assert_eq!(executable(&messages, "decode"), None);
    }
}
