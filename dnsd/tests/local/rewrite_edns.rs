//! `rewrite edns0`: options of the question, and of the answer.

use egret_dnsd::config::model::{EdnsAction, EdnsField, RewriteRule};
use egret_dnsd::dns::message::Query;
use egret_dnsd::plugins::QueryEndpoints;
use egret_dnsd::plugins::rewrite::{Revert, Rules, is_variable};
use hickory_proto::rr::RecordType;

use crate::rewrite::rule;
use crate::support::query;
use crate::{SIZE, endpoints};

const OLD: &[u8] = b"\xff\xf0\x00\x03old";
const OTHER: &[u8] = b"\xff\xf1\x00\x01x";

/// A query with these options, or without an OPT.
fn with_options(options: Option<&[u8]>) -> Query<'static> {
    let mut found = Query::read(&query("a.test", RecordType::A, options.map(|_| SIZE)))
        .unwrap()
        .owned();
    if let (Some(edns), Some(options)) = (&mut found.edns, options) {
        edns.options = options.to_vec();
    }
    found
}

fn applied(
    field: EdnsField,
    action: EdnsAction,
    options: Option<&[u8]>,
    endpoints: &QueryEndpoints,
) -> (Option<Vec<u8>>, Revert) {
    let rules = [rule(
        false,
        RewriteRule::Edns {
            field,
            action,
            revert: true,
        },
    )];
    let (asked, revert) = Rules::new(&rules)
        .apply(with_options(options), endpoints)
        .unwrap();
    (asked.edns.map(|edns| edns.options), revert)
}

fn local(value: &str) -> EdnsField {
    EdnsField::Local(0xfff0, value.to_owned())
}

#[test]
fn each_action_does_what_it_says() {
    use EdnsAction::{Append, Replace, Set, Unset};
    let both = [OLD, OTHER].concat();
    let new: &[u8] = b"\xff\xf0\x00\x03new";
    let other_and_new = [OTHER, new].concat();
    type Row<'a> = (EdnsAction, Option<&'a [u8]>, Option<&'a [u8]>);
    let rows: [Row<'_>; 12] = [
        (Set, None, Some(new)),
        (Set, Some(OTHER), Some(&other_and_new)),
        (Set, Some(&both), Some(&other_and_new)),
        (Append, None, Some(new)),
        (Append, Some(OTHER), Some(&other_and_new)),
        (Append, Some(&both), Some(&both)),
        (Replace, None, None),
        (Replace, Some(OTHER), Some(OTHER)),
        (Replace, Some(&both), Some(&other_and_new)),
        (Unset, None, None),
        (Unset, Some(OTHER), Some(OTHER)),
        (Unset, Some(&both), Some(OTHER)),
    ];
    for (action, before, after) in rows {
        let (found, _) = applied(local("new"), action, before, &endpoints());
        assert_eq!(found.as_deref(), after, "{action:?} {before:?}");
    }
}

#[test]
fn values_are_texts_octets_or_variables() {
    let six = QueryEndpoints {
        client: "[2001:db8::7]:4000".parse().unwrap(),
        over_tcp: true,
        ..endpoints()
    };
    let rows: [(&str, &QueryEndpoints, &[u8]); 9] = [
        ("text", &endpoints(), b"text"),
        ("0x00fF", &endpoints(), b"\x00\xff"),
        ("{qname}", &endpoints(), b"a.test."),
        ("{qtype}", &endpoints(), b"\x00\x01"),
        ("{client_ip}", &endpoints(), &[10, 0, 0, 7]),
        ("{client_port}", &endpoints(), &40_000_u16.to_be_bytes()),
        ("{protocol}", &six, b"tcp"),
        ("{server_ip}", &endpoints(), &[169, 254, 20, 10]),
        ("{server_port}", &endpoints(), &[0, 53]),
    ];
    for (value, endpoints, expected) in rows {
        let (found, _) = applied(local(value), EdnsAction::Set, None, endpoints);
        assert_eq!(found.unwrap()[4..], *expected, "{value}");
        assert_eq!(is_variable(value), value.starts_with('{'));
    }
    let (six, _) = applied(local("{client_ip}"), EdnsAction::Set, None, &six);
    assert_eq!(six.unwrap().len(), 4 + 16);
    assert!(!is_variable("{client}"));
}

#[test]
fn client_subnet_has_only_the_prefix() {
    let six = QueryEndpoints {
        client: "[2001:db8:ff:ffff::7]:4000".parse().unwrap(),
        ..endpoints()
    };
    let four = QueryEndpoints {
        client: "10.1.255.255:1".parse().unwrap(),
        ..endpoints()
    };
    let rows: [(&QueryEndpoints, EdnsField, &[u8]); 5] = [
        (&four, EdnsField::Subnet(24, 56), &[0, 1, 24, 0, 10, 1, 255]),
        (&four, EdnsField::Subnet(20, 56), &[0, 1, 20, 0, 10, 1, 240]),
        (&four, EdnsField::Subnet(0, 56), &[0, 1, 0, 0]),
        (&four, EdnsField::Subnet(32, 56), &[0, 1, 32, 0, 10, 1, 255, 255]),
        (
            &six,
            EdnsField::Subnet(24, 41),
            &[0, 2, 41, 0, 0x20, 1, 0xd, 0xb8, 0, 0x80],
        ),
    ];
    for (endpoints, field, expected) in rows {
        let (found, revert) = applied(field, EdnsAction::Set, None, endpoints);
        assert_eq!(found.unwrap()[4..], *expected);
        assert!(
            !revert.is_shareable(),
            "RFC 7871 §7.3: the answer is for that network"
        );
    }
    let (found, revert) = applied(EdnsField::Nsid, EdnsAction::Set, None, &four);
    assert_eq!(
        (found.as_deref(), revert.is_shareable()),
        (Some(&[0, 3, 0, 0][..]), true)
    );
}

#[test]
fn revert_restores_the_options_of_the_answer() {
    let answered = |reverts, before: &[u8]| {
        let action = EdnsAction::Set;
        let rules = [rule(
            false,
            RewriteRule::Edns {
                field: local("new"),
                action,
                revert: reverts,
            },
        )];
        let client = with_options(Some(before));
        let (_, revert) = Rules::new(&rules).apply(client.clone(), &endpoints()).unwrap();
        let mut octets = egret_dnsd::dns::message::Response {
            options: b"\xff\xf0\x00\x03new".to_vec(),
            ..egret_dnsd::dns::message::Response::own(Vec::new())
        }
        .write(&client, SIZE)
        .unwrap();
        octets = revert.apply(octets, None, SIZE).unwrap();
        octets[12 + client.raw_question.len() + 11..].to_vec()
    };
    assert_eq!(answered(false, b""), b"\xff\xf0\x00\x03new");
    assert_eq!(answered(true, b""), b"");
    assert_eq!(answered(true, OLD), OLD);
}
