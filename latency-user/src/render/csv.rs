//! The report as CSV (RFC 4180): a header line, and a line per operation and algorithm.

use std::io::{self, Write};

use crate::aggregate::{Latency, Source};
use crate::report::{Operation, Report};

const HEADER: &str = "operation,algorithm,count,successes,failures,errors,size_queries,rate_hz,\
    mean_ns,p50_ns,p90_ns,p99_ns,p999_ns,max_ns,\
    failed_mean_ns,failed_p50_ns,failed_p90_ns,failed_p99_ns,failed_p999_ns,failed_max_ns,\
    source,lost_records,counted_records";

/// Writes the operations of the report. A value that does not exist is an empty field; the losses
/// are of the whole run, on every line. Lines end in CR LF, as RFC 4180 has it.
pub fn write(report: &Report, out: &mut impl Write) -> io::Result<()> {
    write!(out, "{HEADER}\r\n")?;
    for operation in &report.operations {
        write!(out, "{}\r\n", line(report, operation))?;
    }
    Ok(())
}

fn line(report: &Report, operation: &Operation) -> String {
    let mut fields = vec![quoted(&operation.operation), quoted(&operation.algorithm)];
    for number in [
        operation.count,
        operation.successes,
        operation.failures,
        operation.errors,
        operation.size_queries,
    ] {
        fields.push(number.to_string());
    }
    fields.push(format!("{:.3}", operation.rate_hz));
    fields.extend(latencies(&operation.latency_ns));
    fields.extend(latencies(&operation.failed_latency_ns.unwrap_or_default()));
    fields.push(match operation.source {
        Source::Records => "records".to_owned(),
        Source::KernelHistogram => "kernel-histogram".to_owned(),
    });
    fields.push(report.loss.records.to_string());
    fields.push(report.loss.counted.to_string());
    fields.join(",")
}

fn latencies(latency: &Latency) -> [String; 6] {
    let Latency { mean, p50, p90, p99, p999, max } = *latency;
    [mean, p50, p90, p99, p999, max]
        .map(|value| value.map_or_else(String::new, |value| value.to_string()))
}

fn quoted(field: &str) -> String {
    if field.contains(['"', ',', '\r', '\n']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::sample;
    use crate::render::golden;

    /// Check the whole table, with a name that needs quoting.
    #[test]
    fn table() {
        let mut report = Report::from(&sample::recording());
        report.operations[1].operation = "verify, \"strictly\"".into();
        let mut bytes = Vec::new();
        write(&report, &mut bytes).unwrap();
        golden::check("report.csv", &String::from_utf8(bytes).unwrap());
    }

    /// Check that every line has as many fields as the header.
    #[test]
    fn fields() {
        let report = Report::from(&sample::recording());
        let fields = HEADER.split(',').count();
        for operation in &report.operations {
            assert_eq!(line(&report, operation).split(',').count(), fields);
        }
    }
}
