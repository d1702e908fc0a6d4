//! `whoami`.

use egret_dnsd::plugins::{QueryEndpoints, whoami};
use hickory_proto::rr::RecordType;

use crate::{SIZE, asked, endpoints, read, texts};

#[test]
fn whoami_has_the_clients_address_port_and_transport() {
    let over_tcp = QueryEndpoints {
        client: "[2001:db8::7]:50000".parse().unwrap(),
        over_tcp: true,
        ..endpoints()
    };
    for (endpoints, name, expected) in [
        (
            endpoints(),
            "a.test",
            ["a.test. 0 IN A 10.0.0.7", "_udp.a.test. 0 IN SRV 0 0 40000 ."],
        ),
        (
            over_tcp,
            "a.test",
            [
                "a.test. 0 IN AAAA 2001:db8::7",
                "_tcp.a.test. 0 IN SRV 0 0 50000 .",
            ],
        ),
        (
            endpoints(),
            ".",
            [". 0 IN A 10.0.0.7", "_udp. 0 IN SRV 0 0 40000 ."],
        ),
    ] {
        let message = read(&whoami::answer(&asked(name, RecordType::A), &endpoints, SIZE).unwrap());
        assert_eq!(texts(&message.additionals), expected);
        assert!(message.answers.is_empty() && message.metadata.authoritative);
    }
}
