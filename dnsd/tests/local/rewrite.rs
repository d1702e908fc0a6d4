//! `rewrite`: names, types, classes, TTLs, codes and aliases.

use egret_dnsd::config::model::{AnswerRewrite, NameMatch, NameRewrite, Rewrite, RewriteRule, TtlRange};
use egret_dnsd::dns::message::Query;
use egret_dnsd::plugins::rewrite::Rules;
use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::{MX, SRV};
use hickory_proto::rr::{RData, Record, RecordType};
use proptest::prelude::*;

use crate::support::{address, alias, authority, name, query, response, with_code};
use crate::{SIZE, asked, endpoints, expression, read, texts};

pub(crate) fn rule(goes_on: bool, rule: RewriteRule) -> Rewrite {
    Rewrite { goes_on, rule }
}

fn renamed(of: NameMatch, to: &str, answers: Vec<AnswerRewrite>) -> RewriteRule {
    RewriteRule::Name(NameRewrite {
        of,
        to: to.to_owned(),
        answers,
    })
}

fn exact(text: &str) -> NameMatch {
    NameMatch::Exact(text.to_owned())
}

fn asked_instead(rules: &[Rewrite], name: &str) -> Result<Query<'static>, String> {
    let applied = Rules::new(rules).apply(asked(name, RecordType::A), &endpoints());
    applied.map(|(query, _)| query).map_err(|error| error.to_string())
}

/// The answer that the client gets, where the upstream answers what it is asked.
fn answered(rules: &[Rewrite], name: &str, answer: impl FnOnce(&str) -> Message) -> Message {
    let (asked, revert) = Rules::new(rules)
        .apply(asked(name, RecordType::A), &endpoints())
        .unwrap();
    let octets = answer(&asked.question.name.to_string()).to_vec().unwrap();
    let reply = read(&revert.apply(octets, None, SIZE).unwrap());
    assert_eq!(reply.queries[0].name().to_string(), format!("{name}."));
    reply
}

fn from_upstream(question: &str, records: Vec<Record>) -> Message {
    response(&query(question, RecordType::A, None), records)
}

#[test]
fn names_are_rewritten() {
    use NameMatch::{Prefix, Regex, Substring, Suffix};
    let rows: [(NameMatch, &str, &str, &str); 9] = [
        (exact("a.test."), "b.test.", "A.test", "b.test."),
        (exact("a.test."), "b.test.", "x.a.test", "x.a.test."),
        (Prefix("old-".into()), "new-", "old-a.test", "new-a.test."),
        (Prefix("old-".into()), "new-", "a.old-test", "a.old-test."),
        (Suffix(".old.".into()), ".new.", "a.old", "a.new."),
        (Suffix(".old.".into()), ".new.", "a.cold", "a.cold."),
        (Substring("old".into()), "new", "old.old.test", "new.new.test."),
        (
            Regex(expression(r"^(.*)\.(.*)\.test\.$")),
            "{2}.{1}.{0}{9}x{",
            "a.b.test",
            r"b.a.a.b.test.{9}x{.",
        ),
        (Regex(expression(r"^nothing")), "{1}", "a.b.test", "a.b.test."),
    ];
    for (of, to, name, expected) in rows {
        let rules = [rule(false, renamed(of, to, Vec::new()))];
        assert_eq!(
            asked_instead(&rules, name).unwrap().question.name.to_string(),
            expected
        );
    }
}

#[test]
fn an_invalid_rewritten_name_is_an_error() {
    let rules = [rule(false, renamed(exact("a.test."), "a..b", Vec::new()))];
    assert_eq!(
        asked_instead(&rules, "a.test").unwrap_err(),
        "\"a..b\", which a rule made, is no name"
    );
}

#[test]
fn later_rules_apply_only_after_continue() {
    let rules = |goes_on| {
        [
            rule(goes_on, renamed(exact("a.test."), "b.test.", Vec::new())),
            rule(false, renamed(exact("b.test."), "c.test.", Vec::new())),
        ]
    };
    assert_eq!(
        asked_instead(&rules(false), "a.test")
            .unwrap()
            .question
            .name
            .to_string(),
        "b.test."
    );
    assert_eq!(
        asked_instead(&rules(true), "a.test")
            .unwrap()
            .question
            .name
            .to_string(),
        "c.test."
    );
    let reply = answered(&rules(true), "a.test", |asked| {
        from_upstream(asked, vec![address("c.test", 60, "192.0.2.1")])
    });
    assert_eq!(
        texts(&reply.answers),
        ["a.test. 60 IN A 192.0.2.1"],
        "and all of them are taken back"
    );
}

#[test]
fn types_and_classes_are_rewritten_and_reverted() {
    let rules = [
        rule(true, RewriteRule::Type { from: 1, to: 28 }),
        rule(false, RewriteRule::Class { from: 1, to: 3 }),
    ];
    let found = asked_instead(&rules, "a.test").unwrap();
    assert_eq!((found.question.kind, found.question.class), (28, 3));
    assert_eq!(found.raw_question[found.raw_question.len() - 4..], [0, 28, 0, 3]);
    let none = asked_instead(&[rule(false, RewriteRule::Type { from: 15, to: 16 })], "a.test").unwrap();
    assert_eq!(none.question.kind, 1);
    let reply = answered(&rules, "a.test", |_| {
        response(&query("a.test", RecordType::AAAA, None), Vec::new())
    });
    assert_eq!(reply.queries[0].query_type(), RecordType::A);
}

#[test]
fn answers_are_reverted_as_the_rule_says() {
    use AnswerRewrite::{Auto, Name, Value};
    let suffix = || NameMatch::Suffix(".old.".to_owned());
    let regex = || NameMatch::Regex(expression(r"^(.*)\.old\.$"));
    let name_back = || Name(expression(r"^(.*)\.new\.$"), "{1}.old.".to_owned());
    let value_back = || Value(expression(r"^(.*)\.new\.$"), "{1}.old.".to_owned());
    let rows = [
        (suffix(), ".new.", vec![], ["a.new.", "b.new."]),
        (suffix(), ".new.", vec![Auto], ["a.old.", "b.old."]),
        (regex(), "{1}.new.", vec![], ["a.new.", "b.new."]),
        (regex(), "{1}.new.", vec![Auto], ["a.old.", "b.new."]),
        (regex(), "{1}.new.", vec![name_back()], ["a.old.", "b.new."]),
        (regex(), "{1}.new.", vec![value_back()], ["a.new.", "b.old."]),
        (
            regex(),
            "{1}.new.",
            vec![name_back(), value_back()],
            ["a.old.", "b.old."],
        ),
        (exact("a.old."), "a.new.", vec![], ["a.old.", "b.new."]),
        (
            exact("a.old."),
            "a.new.",
            vec![value_back()],
            ["a.old.", "b.old."],
        ),
    ];
    for (of, to, answers, [owner, target]) in rows {
        let rules = [rule(false, renamed(of.clone(), to, answers.clone()))];
        let reply = answered(&rules, "a.old", |asked| {
            assert_eq!(asked, "a.new.");
            from_upstream(asked, vec![alias("a.new", 60, "b.new")])
        });
        assert_eq!(
            texts(&reply.answers),
            [format!("{owner} 60 IN CNAME {target}")],
            "{of:?} {answers:?}"
        );
    }
}

#[test]
fn names_below_the_question_are_reverted_by_whole_labels() {
    let rules = [rule(false, renamed(exact("a.old."), "a.new.", Vec::new()))];
    let reply = answered(&rules, "a.old", |asked| {
        let owners = ["a.new", "b.a.new", "ba.new"];
        from_upstream(
            asked,
            owners.map(|owner| address(owner, 60, "192.0.2.1")).to_vec(),
        )
    });
    let owners: Vec<String> = reply
        .answers
        .iter()
        .map(|record| record.name.to_string())
        .collect();
    assert_eq!(owners, ["a.old.", "b.a.old.", "ba.new."]);
}

#[test]
fn names_in_the_data_of_these_types_are_reverted() {
    let rules = [rule(
        false,
        renamed(
            NameMatch::Suffix(".old.".into()),
            ".new.",
            vec![AnswerRewrite::Auto],
        ),
    )];
    let record = |data| Record::from_rdata(name("a.new"), 60, data);
    let reply = answered(&rules, "a.old", |asked| {
        let mut message = from_upstream(
            asked,
            vec![
                record(RData::SRV(SRV::new(1, 2, 3, name("s.new")))),
                record(RData::MX(MX::new(1, name("m.new")))),
                address("b.new", 60, "192.0.2.1"),
                address("b.other", 60, "192.0.2.1"),
            ],
        );
        message.authorities.push(authority(60, 60));
        message
    });
    assert_eq!(
        texts(&reply.answers),
        [
            "a.old. 60 IN SRV 1 2 3 s.old.",
            "a.old. 60 IN MX 1 m.old.",
            "b.old. 60 IN A 192.0.2.1",
            "b.other. 60 IN A 192.0.2.1",
        ]
    );
    assert_eq!(
        texts(&reply.authorities),
        ["test. 60 IN SOA ns.test. admin.test. 1 2 3 4 60"]
    );
}

#[test]
fn ttls_are_clamped() {
    let ttl = |at_least, at_most, of: NameMatch| {
        let rules = [rule(
            false,
            RewriteRule::Ttl {
                of,
                to: TtlRange { at_least, at_most },
            },
        )];
        let reply = answered(&rules, "a.test", |asked| {
            from_upstream(asked, vec![address("a.test", 60, "192.0.2.1")])
        });
        reply.answers[0].ttl
    };
    assert_eq!(ttl(100, 200, exact("a.test.")), 100);
    assert_eq!(ttl(0, 30, exact("a.test.")), 30);
    assert_eq!(ttl(5, 5, exact("b.test.")), 60);
    assert_eq!(ttl(5, 5, NameMatch::Prefix("a.".into())), 5);
    assert_eq!(ttl(5, 5, NameMatch::Suffix(".test.".into())), 5);
    assert_eq!(ttl(5, 5, NameMatch::Substring("b".into())), 60);
    assert_eq!(ttl(5, 5, NameMatch::Regex(expression("^a"))), 5);
}

#[test]
fn codes_are_changed_for_names_that_match() {
    let code = |from, of| {
        let rules = [rule(false, RewriteRule::Rcode { of, from, to: 3 })];
        answered(&rules, "a.test", |asked| {
            with_code(from_upstream(asked, Vec::new()), ResponseCode::ServFail)
        })
        .metadata
        .response_code
    };
    assert_eq!(code(2, exact("a.test.")), ResponseCode::NXDomain);
    assert_eq!(code(2, exact("b.test.")), ResponseCode::ServFail);
    assert_eq!(code(5, exact("a.test.")), ResponseCode::ServFail);
}

#[test]
fn a_rewritten_alias_target_is_queried() {
    let cname = |of, to: &str| {
        [rule(
            false,
            RewriteRule::Cname {
                of,
                to: to.to_owned(),
            },
        )]
    };
    let upstream = || {
        let records = vec![
            alias("a.test", 60, "old.cdn.test"),
            address("old.cdn.test", 60, "192.0.2.1"),
        ];
        from_upstream("a.test", records).to_vec().unwrap()
    };
    for (of, to, expected) in [
        (exact("old.cdn.test."), "new.test.", Some("new.test.")),
        (
            NameMatch::Regex(expression(r"^old\.(.*)")),
            "new.{1}",
            Some("new.cdn.test."),
        ),
        (
            NameMatch::Suffix(".cdn.test.".into()),
            ".test.",
            Some("old.test."),
        ),
        (exact("a.test."), "new.test.", None),
    ] {
        let (_, revert) = Rules::new(&cname(of, to))
            .apply(asked("a.test", RecordType::A), &endpoints())
            .unwrap();
        let target = revert.target(&upstream()).map(|name| name.to_string());
        assert_eq!(target.as_deref(), expected);
        let unfound = read(&revert.apply(upstream(), None, SIZE).unwrap());
        assert_eq!(unfound.answers.len(), 2, "nothing found changes nothing");
        if let Some(target) = expected {
            let found = from_upstream(target, vec![address(target, 9, "192.0.2.2")])
                .to_vec()
                .unwrap();
            let reply = read(&revert.apply(upstream(), Some(&found), SIZE).unwrap());
            let lines = [
                format!("a.test. 60 IN CNAME {target}"),
                format!("{target} 9 IN A 192.0.2.2"),
            ];
            assert_eq!(texts(&reply.answers), lines);
        }
    }
}

#[test]
fn records_of_the_old_alias_target_are_dropped() {
    let rule = rule(
        false,
        RewriteRule::Cname {
            of: exact("b.test."),
            to: "new.test.".to_owned(),
        },
    );
    let (_, revert) = Rules::new(&[rule])
        .apply(asked("a.test", RecordType::A), &endpoints())
        .unwrap();
    let chain = vec![
        alias("a.test", 60, "b.test"),
        alias("b.test", 60, "c.test"),
        address("c.test", 60, "192.0.2.1"),
    ];
    let octets = from_upstream("a.test", chain).to_vec().unwrap();
    let found = from_upstream("new.test", vec![address("new.test", 9, "192.0.2.2")]);
    let reply = revert.apply(octets, Some(&found.to_vec().unwrap()), SIZE);
    assert_eq!(
        texts(&read(&reply.unwrap()).answers),
        ["a.test. 60 IN CNAME new.test.", "new.test. 9 IN A 192.0.2.2"]
    );
}

#[test]
fn an_answer_without_a_matching_rule_is_unchanged() {
    let rules = [rule(false, renamed(exact("other.test."), "b.test.", Vec::new()))];
    let (_, revert) = Rules::new(&rules)
        .apply(asked("a.test", RecordType::A), &endpoints())
        .unwrap();
    let octets = from_upstream("a.test", vec![address("a.test", 60, "192.0.2.1")])
        .to_vec()
        .unwrap();
    assert!(revert.is_nothing());
    assert_eq!(revert.apply(octets.clone(), None, SIZE).unwrap(), octets);
}

fn label() -> impl Strategy<Value = String> {
    "[a-c]{1,3}"
}

proptest! {
    #[test]
    fn the_original_name_is_restored(
        labels in proptest::collection::vec(label(), 1..5),
        from in label(),
        to in label(),
        form in 0..4_usize,
    ) {
        let asked_for = labels.join(".");
        let of = match form {
            0 => NameMatch::Prefix(from),
            1 => NameMatch::Suffix(format!("{from}.")),
            2 => NameMatch::Substring(from),
            _other => NameMatch::Regex(expression(&format!("{from}(.*)$"))),
        };
        let to = match form {
            1 => format!("{to}."),
            3 => format!("{to}{{1}}"),
            _other => to,
        };
        let rules = [rule(false, renamed(of, &to, vec![AnswerRewrite::Auto]))];
        let reply = answered(&rules, &asked_for, |asked| from_upstream(asked, vec![address(asked, 60, "192.0.2.1")]));
        prop_assert_eq!(reply.answers[0].name.to_string(), format!("{asked_for}."));
    }

    #[test]
    fn no_octets_make_it_panic(octets in proptest::collection::vec(any::<u8>(), 0..120)) {
        let rules = [
            rule(true, RewriteRule::Cname { of: NameMatch::Regex(expression(".*")), to: "x.{0}".to_owned() }),
            rule(true, renamed(NameMatch::Regex(expression("(.*)")), "x.{1}", vec![AnswerRewrite::Auto])),
        ];
        let (_, revert) = Rules::new(&rules).apply(asked("a.test", RecordType::A), &endpoints()).unwrap();
        let whole = [&[0, 7, 0x80, 0, 0, 1, 0, 9, 0, 9, 0, 9, 1, b'a', 0, 0, 1, 0, 1], octets.as_slice()].concat();
        for octets in [octets.clone(), whole] {
            let _target = revert.target(&octets);
            let _reply = revert.apply(octets.clone(), Some(&octets), SIZE);
        }
    }
}
