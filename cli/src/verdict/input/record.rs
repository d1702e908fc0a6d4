//! A record: an address that a pod was told for a name.

use std::net::IpAddr;

use egret_shared::name::DnsName;
use egret_shared::pod::PodKey;
use egret_shared::time::Ttl;
use serde_json::Value;

use super::lines::{Fields, LineProblem};
use super::probe::parse_address;

/// An address that a pod was told for a name, now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The pod that asked.
    pub pod: PodKey,
    /// What it asked for.
    pub name: DnsName,
    /// What it was told.
    pub address: IpAddr,
    /// For how long that counts, from now.
    pub ttl: Ttl,
}

impl Record {
    /// Reads a record from the fields of a line.
    ///
    /// # Errors
    /// A field that is missing or cannot be understood.
    pub fn parse(fields: &mut Fields) -> Result<Self, LineProblem> {
        Ok(Self {
            pod: fields.require_text("pod")?,
            name: fields.require_text("name")?,
            address: parse_address("address", &fields.require("address")?)?,
            ttl: parse_ttl(&fields.require("ttl")?)?,
        })
    }
}

fn parse_ttl(value: &Value) -> Result<Ttl, LineProblem> {
    value
        .as_u64()
        .and_then(|seconds| u32::try_from(seconds).ok())
        .filter(|seconds| i32::try_from(*seconds).is_ok())
        .map(Ttl::from_wire)
        .ok_or_else(|| {
            let accepted = "a number of seconds from 0 to 2147483647 is expected";
            LineProblem::field("ttl", format!("{value} is no TTL; {accepted}"))
        })
}

#[cfg(test)]
mod tests {
    use super::super::lines;
    use super::*;

    #[test]
    fn a_record_is_read_and_what_is_wrong_with_one_is_named() {
        let text = r#"{"pod":"a/b","name":"X.example.","address":"2001:db8::1","ttl":30}"#;
        let record = lines::parse_line(text, Record::parse).unwrap();
        assert_eq!(record.name, "x.example".parse().unwrap());
        assert_eq!(record.ttl, Ttl::from_wire(30));
        for (text, field) in [
            (r#"{"name":"x.example","address":"2001:db8::1","ttl":30}"#, "pod"),
            (
                r#"{"pod":"a/b","name":"x..example","address":"2001:db8::1","ttl":30}"#,
                "name",
            ),
            (
                r#"{"pod":"a/b","name":"x.example","address":"2001","ttl":30}"#,
                "address",
            ),
            (
                r#"{"pod":"a/b","name":"x.example","address":"2001:db8::1","ttl":-1}"#,
                "ttl",
            ),
            (
                r#"{"pod":"a/b","name":"x.example","address":"2001:db8::1","ttl":2147483648}"#,
                "ttl",
            ),
        ] {
            let problem = lines::parse_line(text, Record::parse).unwrap_err().to_string();
            assert!(
                problem.starts_with(&format!("field {field:?}: ")),
                "{text}: {problem}"
            );
        }
    }
}
