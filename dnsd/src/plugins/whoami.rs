//! `whoami`: the client's address, port and transport, in the additional section.

use std::net::IpAddr;

use super::QueryEndpoints;
use crate::dns::message::{Data, Query, ResourceRecord, Response, Sections, TooLong, WireName, kind};

/// Answers a query. The record is left out if its owner name would be too long.
///
/// # Errors
/// None for two records; the writer checks.
pub fn answer(query: &Query, endpoints: &QueryEndpoints, udp_size: u16) -> Result<Vec<u8>, TooLong> {
    let record = |owner, kind, data| ResourceRecord {
        owner,
        kind,
        class: query.question.class,
        ttl: 0,
        data,
    };
    let name = query.question.name;
    let address = match endpoints.client.ip() {
        IpAddr::V4(address) => record(name, kind::A, Data::octets(&address.octets())),
        IpAddr::V6(address) => record(name, kind::AAAA, Data::octets(&address.octets())),
    };
    let [high, low] = endpoints.client.port().to_be_bytes();
    let service = service(&name, endpoints.protocol()).map(|owner| {
        let data = Data::octets_and_name(&[0, 0, 0, 0, high, low], WireName::root());
        record(owner, kind::SRV, data)
    });
    let response = Response {
        sections: Sections {
            additional: std::iter::once(address).chain(service).collect(),
            ..Sections::default()
        },
        ..Response::own(Vec::new())
    };
    response.write(query, udp_size)
}

fn service(name: &WireName, protocol: &str) -> Option<WireName> {
    let name = name.to_string();
    WireName::parse(&format!(
        "_{protocol}.{}",
        name.strip_suffix('.').unwrap_or(&name)
    ))
    .ok()
}
