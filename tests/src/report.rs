//! The tracer's JSON report, as far as tests look at it.

use std::collections::BTreeMap;

use serde_json::Value;

/// Per operation and algorithm: how many were completed, how many of them failed, and how many
/// calls only asked for the signature's size.
pub type Operations = BTreeMap<(String, String), (u64, u64, u64)>;

/// The operations of a tracer's report or of a workload's own account, which use the same names.
/// Rows in which nothing happened are left out.
#[track_caller]
pub fn operations(json: &Value) -> Operations {
    let rows = json["operations"].as_array().unwrap_or_else(|| panic!("no operations in {json}"));
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or("-").to_owned();
    let number = |row: &Value, field: &str| {
        row[field].as_u64().unwrap_or_else(|| panic!("no number {field} in {row}"))
    };
    rows.iter()
        .map(|row| {
            (
                (text(row, "operation"), text(row, "algorithm")),
                (number(row, "count"), number(row, "failures"), number(row, "size_queries")),
            )
        })
        .filter(|(_, (count, _, queries))| count + queries > 0)
        .collect()
}

/// A report of schema `latency.report/1`.
pub struct Report {
    /// The whole object.
    pub json: Value,
}

/// One operation of a report.
pub struct Row<'a>(&'a Value);

impl Report {
    /// Parses a report; anything but one JSON object of the known schema fails the test.
    #[track_caller]
    pub fn parse(text: &str) -> Self {
        let json: Value =
            serde_json::from_str(text).unwrap_or_else(|err| panic!("no JSON: {err}: {text}"));
        assert_eq!(json["schema"], "latency.report/1");
        Self { json }
    }

    /// All operations.
    #[track_caller]
    pub fn operations(&self) -> Operations {
        operations(&self.json)
    }

    /// The row of this operation and algorithm.
    #[track_caller]
    pub fn row(&self, operation: &str, algorithm: &str) -> Row<'_> {
        let rows = self.json["operations"].as_array().expect("operations");
        let found =
            rows.iter().find(|r| r["operation"] == operation && r["algorithm"] == algorithm);
        Row(found.unwrap_or_else(|| panic!("no {operation} {algorithm} in {rows:#?}")))
    }

    /// The first operation or request of this name.
    #[track_caller]
    pub fn operation(&self, name: &str) -> &Value {
        let found = self.list("/operations").iter().find(|it| it["operation"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {:#}", self.json["operations"]))
    }

    /// The number of completed operations of this name, whatever the algorithm.
    #[track_caller]
    pub fn count(&self, operation: &str) -> u64 {
        let all = self.operations();
        all.iter().filter(|((name, _), _)| name == operation).map(|(_, numbers)| numbers.0).sum()
    }

    /// A number, by its JSON pointer.
    #[track_caller]
    pub fn number(&self, pointer: &str) -> u64 {
        let value = self.json.pointer(pointer).and_then(Value::as_u64);
        value.unwrap_or_else(|| panic!("no number {pointer} in {:#}", self.json))
    }

    /// A text, by its JSON pointer.
    #[track_caller]
    pub fn text(&self, pointer: &str) -> &str {
        let value = self.json.pointer(pointer).and_then(Value::as_str);
        value.unwrap_or_else(|| panic!("no text {pointer} in {:#}", self.json))
    }

    /// Whether the value at a JSON pointer is null.
    #[track_caller]
    pub fn is_null(&self, pointer: &str) -> bool {
        let value = self.json.pointer(pointer);
        value.unwrap_or_else(|| panic!("no {pointer} in {:#}", self.json)).is_null()
    }

    /// The elements of a list, by its JSON pointer.
    #[track_caller]
    pub fn list(&self, pointer: &str) -> &[Value] {
        let value = self.json.pointer(pointer).and_then(Value::as_array);
        value.unwrap_or_else(|| panic!("no list {pointer} in {:#}", self.json))
    }

    /// The lock whose name ends like this, such as `:g_keystore_lock`.
    #[track_caller]
    pub fn lock(&self, end: &str) -> &Value {
        let is_it = |lock: &&Value| lock["name"].as_str().is_some_and(|name| name.ends_with(end));
        let found = self.list("/locks").iter().find(is_it);
        found.unwrap_or_else(|| panic!("no lock {end} in {:#}", self.json["locks"]))
    }

    /// The time off the CPU, in nanoseconds, for this reason in stacks with this function.
    #[track_caller]
    pub fn off_cpu_ns(&self, reason: &str, function: &str) -> u64 {
        let of_reason = self.list("/off_cpu").iter().filter(|kind| kind["reason"] == reason);
        let stacks = of_reason.flat_map(|kind| kind["stacks"].as_array().expect("stacks"));
        let has_function = |stack: &&Value| {
            let mut frames = stack["frames"].as_array().expect("frames").iter();
            frames.any(|frame| frame.as_str().is_some_and(|frame| frame.contains(function)))
        };
        stacks.filter(has_function).map(|stack| stack["total_ns"].as_u64().expect("total_ns")).sum()
    }

    /// The calls whose duration is not known, of every kind.
    #[track_caller]
    pub fn incomplete_calls(&self) -> u64 {
        ["abandoned", "thread_exited", "in_progress", "unmatched_returns"]
            .map(|kind| self.number(&format!("/incomplete_calls/{kind}")))
            .iter()
            .sum()
    }

    /// The warnings, as one text.
    pub fn warnings(&self) -> String {
        self.json["warnings"].to_string()
    }

    /// Fails the test unless every record arrived and none was left open.
    #[track_caller]
    pub fn assert_no_loss(&self) {
        assert_eq!(self.number("/loss/records"), 0, "lost records: {}", self.json["loss"]);
        assert_eq!(self.number("/loss/received"), self.number("/loss/counted"));
    }
}

impl Row<'_> {
    /// A number of the row, such as `count`.
    #[track_caller]
    pub fn number(&self, field: &str) -> u64 {
        self.0[field].as_u64().unwrap_or_else(|| panic!("no number {field} in {:#}", self.0))
    }

    /// A latency, such as `p50`, in nanoseconds.
    #[track_caller]
    pub fn latency_ns(&self, name: &str) -> u64 {
        // Means may carry a fraction.
        let value = &self.0["latency_ns"][name];
        let number = value.as_f64().unwrap_or_else(|| panic!("no latency {name} in {:#}", self.0));
        number.round() as u64
    }

    /// Where the percentiles come from.
    #[track_caller]
    pub fn source(&self) -> &str {
        self.0["source"].as_str().unwrap_or_else(|| panic!("no source in {:#}", self.0))
    }
}
