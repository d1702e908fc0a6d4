//! The transcript of a run, without what differs between two runs of the same program.

use std::sync::LazyLock;

use hickory_proto::op::{Message, MessageType};
use hickory_proto::rr::Record;
use regex::Regex;

/// TTLs that rows use: what is a little below one of them has been counted down.
const TTLS: [u32; 12] = [0, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 86_400];

/// Code, flags and records; records of a section in the order of their texts. Not RA: dnsd says of all answers that it asks on
/// (RFC 1035 §4.1.1), CoreDNS not of those that it makes itself, nor where nobody answered it.
pub(crate) fn of_message(message: &Message) -> String {
    let flags = [
        (message.metadata.authoritative, "aa"),
        (message.metadata.truncation, "tc"),
        (message.metadata.recursion_desired, "rd"),
        (message.metadata.authentic_data, "ad"),
        (message.metadata.checking_disabled, "cd"),
    ];
    let flags: Vec<&str> = flags
        .iter()
        .filter(|(is_set, _)| *is_set)
        .map(|(_, name)| *name)
        .collect();
    let questions: Vec<String> = message
        .queries
        .iter()
        .map(|query| format!("{} {} {}", query.name, query.query_class, query.query_type))
        .collect();
    format!(
        "{:?} [{}] {} | {} | {} | {}",
        message.metadata.response_code,
        flags.join(" "),
        questions.join(", "),
        section(&message.answers),
        section(&message.authorities),
        section(&message.additionals),
    )
}

/// Size and options.
pub(crate) fn of_edns(message: &Message) -> String {
    let Some(edns) = &message.edns else {
        return " no EDNS".to_owned();
    };
    // Of answers dnsd says what it takes itself (RFC 6891 §6.2.3), CoreDNS what the client said.
    let size = match message.metadata.message_type {
        MessageType::Query => edns.max_payload().to_string(),
        MessageType::Response => String::new(),
    };
    let options: Vec<String> = edns
        .options()
        .as_ref()
        .iter()
        .map(|(code, option)| format!("{code:?} {option:?}"))
        .collect();
    format!(" EDNS {size} {options:?}")
}

fn section(records: &[Record]) -> String {
    let mut texts: Vec<String> = records.iter().map(text).collect();
    texts.sort();
    texts.join("; ")
}

fn text(record: &Record) -> String {
    static CLIENT: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^0 0 \d+ [.]$").unwrap());
    let ttl = TTLS.iter().find(|ttl| **ttl >= record.ttl).unwrap_or(&u32::MAX);
    let data = record.data.to_string();
    let data = CLIENT.replace(&data, "0 0 PORT .");
    format!("{} {ttl} {} {data}", record.name, record.record_type())
}

/// A line of a log in CoreDNS' form, without ports, ids, lengths of answers and times.
pub(crate) fn of_line(line: &str) -> String {
    static PARTS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
        let parts = [
            (r"\d+\.\d+\.\d+\.\d+:\d+", "ADDRESS"),
            (r"ADDRESS - \d+", "ADDRESS - ID"),
            // What operators' patterns look for stands at the end.
            (r"(plugin/errors: \d+ \S+ \S+: ).*: ([^:]+)$", "$1...: $2"),
            // dnsd says the length of what it sends, CoreDNS that without the OPT, and not compressed.
            (
                r"(NOERROR|NXDOMAIN|SERVFAIL|REFUSED) (\S+) \d+ \S+s\b",
                "$1 $2 LENGTH TIME",
            ),
            (r"\b\d+\.\d+(e-\d+)?s\b", "TIME"),
        ];
        let compiled = parts.map(|(pattern, to)| (Regex::new(pattern).unwrap(), to));
        Vec::from(compiled)
    });
    PARTS.iter().fold(line.to_owned(), |line, (part, to)| {
        part.replace_all(&line, *to).into_owned()
    })
}

/// The samples of a family, without those that are zero.
pub(crate) fn of_metrics(page: &str, family: &str) -> String {
    static PORTS: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"127\.\d+\.\d+\.\d+:\d+").unwrap());
    let samples = page.lines().filter(|line| {
        line.strip_prefix(family)
            .is_some_and(|rest| rest.starts_with(['{', ' ']))
            && !line.ends_with(" 0")
    });
    let mut samples: Vec<String> = samples
        .map(|line| with_sorted_labels(&PORTS.replace_all(line, "ADDRESS")))
        .collect();
    samples.sort();
    samples.join("\n")
}

/// The upper bounds of a histogram.
pub(crate) fn of_bounds(page: &str, family: &str) -> String {
    let samples = page
        .lines()
        .filter(|line| line.starts_with(&format!("{family}_bucket{{")));
    let bounds = samples.filter_map(|line| line.split_once("le=\"")?.1.split('"').next()?.parse().ok());
    let mut bounds: Vec<f64> = bounds.collect();
    bounds.sort_by(f64::total_cmp);
    bounds.dedup();
    format!("{family}: {bounds:?}")
}

fn with_sorted_labels(sample: &str) -> String {
    let Some((name, rest)) = sample.split_once('{') else {
        return sample.to_owned();
    };
    let (labels, value) = rest.rsplit_once('}').unwrap();
    let mut labels: Vec<&str> = labels.split(',').collect();
    labels.sort_unstable();
    format!("{name}{{{}}}{value}", labels.join(","))
}
