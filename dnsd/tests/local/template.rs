//! `template`: every option with two settings, and every place that can be filled in.

use egret_dnsd::config::model::{Fallthrough, Template, TemplateText};
use egret_dnsd::dns::message::Query;
use egret_dnsd::plugins::template::Templates;
use egret_dnsd::plugins::{Outcome, QueryEndpoints, append};
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;
use proptest::prelude::*;

use crate::support::{address, query, response};
use crate::{SIZE, answers, asked, endpoints, expression, read, texts, zones};

pub(crate) fn plan() -> Template {
    Template {
        origin: "Corefile:1".to_owned(),
        class: 1,
        kind: 1,
        zones: Vec::new(),
        matches: Vec::new(),
        answer: Vec::new(),
        additional: Vec::new(),
        authority: Vec::new(),
        rcode: 0,
        extended_error: None,
        fallthrough: Fallthrough::No,
    }
}

pub(crate) fn lines(texts: &[&str]) -> Vec<TemplateText> {
    texts
        .iter()
        .map(|text| TemplateText((*text).to_owned()))
        .collect()
}

fn outcome(plans: &[Template], name: &str, kind: RecordType) -> Outcome {
    let templates = Templates::new(plans, &zones(&["example", "in-addr.arpa"])).unwrap();
    templates.answer(&asked(name, kind), &endpoints(), SIZE).outcome
}

fn answered(plan: Template, name: &str, kind: RecordType) -> Result<Vec<String>, &'static str> {
    answers(&outcome(&[plan], name, kind))
}

fn with_match(pattern: &str, answer: &str) -> Template {
    Template {
        matches: vec![expression(pattern)],
        answer: lines(&[answer]),
        ..plan()
    }
}

#[test]
fn placeholders_are_filled_in_from_question_and_groups() {
    let ip = r"(^|[.])ip-(?P<a>[0-9]*)-(?P<b>[0-9]*)-(?P<c>[0-9]*)-(?P<d>[0-9]*)[.]example[.]$";
    let hex = r"^ip0a(?P<b>[a-f0-9]{2})(?P<c>[a-f0-9]{2})(?P<d>[a-f0-9]{2})[.]example[.]$";
    let rows: [(&str, &str, &str, &str); 16] = [
        (
            ip,
            "{{ .Name }} 60 IN A {{ .Group.a }}.{{ .Group.b }}.{{ .Group.c }}.{{ .Group.d }}",
            "x.ip-192-0-2-7.example",
            "x.ip-192-0-2-7.example. 60 IN A 192.0.2.7",
        ),
        (
            ip,
            "{{ .Name }} 60 IN A {{ index .Match 2 }}.0.2.{{ index .Match 5 }}",
            "ip-192-0-2-7.example",
            "ip-192-0-2-7.example. 60 IN A 192.0.2.7",
        ),
        (
            ip,
            "{{ .Name }} A {{ index .Group \"a\" }}.{{ index .Group `b` }}.2.1",
            "ip-192-0-2-7.example",
            "ip-192-0-2-7.example. 3600 IN A 192.0.2.1",
        ),
        (
            hex,
            "{{ .Name }} 60 IN A 10.{{ parseInt .Group.b 16 8 }}.{{ parseInt .Group.c 16 8 }}.{{ parseInt (index .Match 3) 16 8 }}",
            "ip0a7b0102.example",
            "ip0a7b0102.example. 60 IN A 10.123.1.2",
        ),
        (
            ".*",
            "{{.Name}} {{/* a comment */}}60 {{.Class}} {{.Type}} 192.0.2.1",
            "a.example",
            "a.example. 60 IN A 192.0.2.1",
        ),
        (
            ".*",
            "x.{{ .Zone }} 60 A 192.0.2.1",
            "a.example",
            "x.example. 60 IN A 192.0.2.1",
        ),
        (
            ".*",
            "{{ .Name }} 60 A {{ .Remote }}",
            "a.example",
            "a.example. 60 IN A 10.0.0.7",
        ),
        (
            ".*",
            "{{ .Question.Name }} {{ .Question.Qtype }} A 10.0.0.{{ .Question.Qclass }}",
            "a.example",
            "a.example. 1 IN A 10.0.0.1",
        ),
        (
            ".*",
            "{{ .Name }} 60 TXT {{ .Message.RecursionDesired }} {{ .Message.CheckingDisabled }}",
            "a.example",
            "a.example. 60 IN TXT truefalse",
        ),
        (
            ".*",
            "{{ .Name }} 60 TXT \"{{ .Regex }}\"",
            "a.example",
            "a.example. 60 IN TXT .*",
        ),
        (
            ".*",
            "{{ .Name }} 60 TXT \"-{{ .Meta \"a/b\" }}-\"",
            "a.example",
            "a.example. 60 IN TXT --",
        ),
        (
            ".*",
            "{{ .Name }} 60 TXT x{{- \" \" -}} y",
            "a.example",
            "a.example. 60 IN TXT xy",
        ),
        (
            ".*",
            "{{ .Name }} 60 A 10.0.0.{{ \"7\" | parseInt }}",
            "a.example",
            "refused",
        ),
        (
            ".*",
            "{{ .Name }} 60 A 10.0.0.{{ 7 }}",
            "a.example",
            "a.example. 60 IN A 10.0.0.7",
        ),
        (
            "^(?P<n>[0-9a-f]+)",
            "{{ .Name }} 60 A 10.0.0.{{ parseInt .Group.n 0x10 8 }}",
            "2a.example",
            "2a.example. 60 IN A 10.0.0.42",
        ),
        (
            "^(a)|(?P<late>b)",
            "{{ .Name }} 60 TXT \"-{{ .Group.late }}-\"",
            "a.example",
            "a.example. 60 IN TXT --",
        ),
    ];
    for (pattern, answer, name, expected) in rows {
        let plan = with_match(pattern, answer);
        if expected == "refused" {
            assert!(Templates::new(&[plan], &[]).is_err(), "{answer}");
            continue;
        }
        assert_eq!(
            answered(plan, name, RecordType::A),
            Ok(vec![expected.to_owned()]),
            "{answer}"
        );
    }
}

#[test]
fn a_placeholder_without_a_value_is_servfail() {
    for (pattern, answer) in [
        (
            "^(?P<n>[a-z]+)",
            "{{ .Name }} 60 A 10.0.0.{{ parseInt .Group.n 10 8 }}",
        ),
        ("^(?P<n>[0-9]*)", "{{ .Name }} 60 A 10.0.0.{{ .Group.n }}"),
        ("^.", "{{ .Name }}.x 60 A 10.0.0.1"),
    ] {
        assert_eq!(
            answered(with_match(pattern, answer), "zz.example", RecordType::A),
            Err("SERVFAIL"),
            "{answer}"
        );
    }
    let big = with_match(
        "^(?P<n>[0-9]*)",
        "{{ .Name }} {{ parseInt .Group.n 10 8 }} A 10.0.0.1",
    );
    assert_eq!(
        answered(big.clone(), "256.example", RecordType::A),
        Err("SERVFAIL")
    );
    assert!(answered(big, "255.example", RecordType::A).is_ok());
}

#[test]
fn class_type_and_zones_select_queries() {
    let base = || Template {
        answer: lines(&["{{ .Name }} 60 A 192.0.2.1"]),
        ..plan()
    };
    let is_answered = |plan: Template, name, kind| answered(plan, name, kind).is_ok();
    for (plan, expected) in [
        (base(), [true, false]),
        (Template { kind: 28, ..base() }, [false, true]),
        (Template { kind: 255, ..base() }, [true, true]),
        (Template { class: 3, ..base() }, [false, false]),
        (Template { class: 255, ..base() }, [true, false]),
        (
            Template {
                zones: zones(&["a.example"]),
                ..base()
            },
            [true, false],
        ),
        (
            Template {
                zones: zones(&["b.example"]),
                ..base()
            },
            [false, false],
        ),
    ] {
        let found =
            [RecordType::A, RecordType::AAAA].map(|kind| is_answered(plan.clone(), "a.example", kind));
        assert_eq!(found, expected, "{plan:?}");
    }
    assert!(
        is_answered(base(), "a.example", RecordType::ANY),
        "who asks for any is told of each"
    );
    assert_eq!(
        answered(base(), "a.test", RecordType::A),
        Err("next"),
        "the block's zones where none are said"
    );
}

#[test]
fn the_first_expression_that_matches_counts_and_then_the_next_template() {
    let two = Template {
        matches: vec![expression("^(?P<n>1)[.]"), expression("^(?P<n>.*)[.]example[.]$")],
        answer: lines(&["{{ .Name }} 60 TXT {{ .Group.n }}"]),
        fallthrough: Fallthrough::All,
        ..plan()
    };
    let last = Template {
        answer: lines(&["{{ .Name }} 60 TXT last"]),
        ..plan()
    };
    let found = |name, fallthrough| {
        let first = Template {
            matches: vec![expression("^x[.]")],
            fallthrough,
            ..two.clone()
        };
        let first = Template {
            answer: lines(&["{{ .Name }} 60 TXT first"]),
            ..first
        };
        answers(&outcome(&[first, last.clone()], name, RecordType::A)).map(|texts| texts[0].clone())
    };
    assert_eq!(
        answered(two.clone(), "1.example", RecordType::A).unwrap(),
        ["1.example. 60 IN TXT 1"]
    );
    assert_eq!(
        answered(two.clone(), "22.example", RecordType::A).unwrap(),
        ["22.example. 60 IN TXT 22"]
    );
    assert_eq!(
        found("x.example", Fallthrough::No),
        Ok("x.example. 60 IN TXT first".to_owned())
    );
    assert_eq!(found("y.example", Fallthrough::No), Err("SERVFAIL"));
    assert_eq!(
        found("y.example", Fallthrough::All),
        Ok("y.example. 60 IN TXT last".to_owned())
    );
    assert_eq!(
        found("y.example", Fallthrough::In(zones(&["z.example"]))),
        Err("SERVFAIL")
    );
    assert_eq!(
        found("y.example", Fallthrough::In(zones(&["y.example"]))),
        Ok("y.example. 60 IN TXT last".to_owned())
    );
}

#[test]
fn sections_code_and_extended_error_are_as_written() {
    let plan = Template {
        kind: 255,
        rcode: 3,
        authority: lines(&["{{ .Zone }} 60 IN SOA ns.example hostmaster.example (1 60 60 60 60)"]),
        additional: lines(&["ns.example 60 A 192.0.2.53"]),
        extended_error: Some((21, "blocked".to_owned())),
        ..plan()
    };
    let templates = |plan| Templates::new(&[plan], &zones(&["example"])).unwrap();
    let query = Query::read(&query("a.example", RecordType::A, Some(1232)))
        .unwrap()
        .owned();
    let Outcome::Answer(octets) = templates(plan.clone()).answer(&query, &endpoints(), SIZE).outcome else {
        panic!()
    };
    let message = read(&octets);
    assert_eq!(message.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(
        texts(&message.authorities),
        ["example. 60 IN SOA ns.example. hostmaster.example. 1 60 60 60 60"]
    );
    assert_eq!(texts(&message.additionals), ["ns.example. 60 IN A 192.0.2.53"]);
    assert!(message.metadata.authoritative && message.answers.is_empty());
    assert!(octets.ends_with(b"\x00\x0f\x00\x09\x00\x15blocked"));
    let failure = Template { rcode: 2, ..plan };
    let Outcome::Answer(octets) = templates(failure).answer(&query, &endpoints(), SIZE).outcome else {
        panic!()
    };
    let message = read(&octets);
    assert_eq!(message.metadata.response_code, ResponseCode::ServFail);
    assert!(message.authorities.is_empty() && message.additionals.is_empty());
}

#[test]
fn an_alias_is_followed_for_address_queries() {
    let plan = || Template {
        kind: 255,
        answer: lines(&["{{ .Name }} 60 IN CNAME b.test"]),
        ..plan()
    };
    let Outcome::Follow(octets, target) = outcome(&[plan()], "a.example", RecordType::A) else {
        panic!()
    };
    assert_eq!(target.to_string(), "b.test.");
    let found = response(
        &query("b.test", RecordType::A, None),
        vec![address("b.test", 9, "192.0.2.1")],
    );
    let whole = append(
        octets,
        &found.to_vec().unwrap(),
        &asked("a.example", RecordType::A),
        SIZE,
    );
    assert_eq!(
        texts(&read(&whole).answers),
        ["a.example. 60 IN CNAME b.test.", "b.test. 9 IN A 192.0.2.1"]
    );
    assert!(matches!(
        outcome(&[plan()], "a.example", RecordType::TXT),
        Outcome::Answer(_)
    ));
}

#[test]
fn an_answer_that_depends_on_the_client_is_for_one_client() {
    for (answer, expected) in [
        ("{{ .Name }} 60 A {{ .Remote }}", true),
        ("{{ .Name }} 60 TXT {{ index .Group .Remote }}", true),
        ("{{ .Name }} 60 TXT {{ .Message.Id }}", true),
        ("{{ .Name }} 60 A 192.0.2.1", false),
    ] {
        let templates = Templates::new(&[with_match(".*", answer)], &[]).unwrap();
        assert_eq!(templates.depend_on_client(), expected, "{answer}");
    }
}

#[test]
fn remote_has_the_clients_family() {
    let endpoints = QueryEndpoints {
        client: "[2001:db8::7]:4000".parse().unwrap(),
        ..endpoints()
    };
    let plan = Template {
        kind: 28,
        answer: lines(&["{{ .Name }} 60 AAAA {{ .Remote }}"]),
        ..plan()
    };
    let templates = Templates::new(&[plan], &zones(&["example"])).unwrap();
    let found = templates
        .answer(&asked("a.example", RecordType::AAAA), &endpoints, SIZE)
        .outcome;
    assert_eq!(answers(&found).unwrap(), ["a.example. 60 IN AAAA 2001:db8::7"]);
}

proptest! {
    #[test]
    fn no_template_makes_it_panic(text in "([{}. |()\"`a-zA-Z0-9*/-]|\\{\\{|\\}\\}|\\.Name|index|\\.Match|\\PC){0,40}") {
        let plan = Template { matches: vec![expression("(.)(?P<b>.*)")], answer: lines(&[&text]), ..plan() };
        if let Ok(templates) = Templates::new(&[plan], &zones(&["."])) {
            let _outcome = templates.answer(&asked("a.test", RecordType::A), &endpoints(), SIZE);
        }
    }
}
