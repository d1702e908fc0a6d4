//! What of a template is refused when the file is read, and at which column.

use egret_dnsd::config::model::TemplateText;
use egret_dnsd::plugins::template::check;

use crate::expression;

#[test]
fn unknown_syntax_is_refused_with_its_column() {
    let matches = [expression("^(?P<a>.)(.)")];
    for (text, column, part) in [
        ("{{ .Name }} 60 A {{ .Nmae }}", 21, "no field \".Nmae\""),
        ("{{ .Name }} 60 A {{ .Group.b }}", 21, "the group \"b\""),
        ("{{ .Name }} 60 A {{ index .Match 3 }}", 21, "the group \"3\""),
        ("{{ .Name }} 60 A {{ .Match }}", 21, "an index"),
        ("{{ .Name }} 60 A {{ .Group }}", 21, "a name"),
        (
            "{{ .Name }} 60 A {{ printf \"%d\" 1 }}",
            21,
            "\"printf\" is not accepted",
        ),
        ("{{ if .Name }}x{{ end }}", 4, "\"if\" is not accepted"),
        ("{{ $x := .Name }}", 4, "\"$\" is not accepted"),
        ("{{ range .Match }}{{ end }}", 4, "\"range\" is not accepted"),
        ("{{ .Name }} 60 A {{ .Var.x }}", 21, "no field"),
        ("{{ .Name }} 60 A {{ . }}", 21, "no field"),
        ("{{ .Name }} 60 A {{ .Name", 18, "not closed"),
        ("{{ .Name }} 60 A {{ }}", 21, "a value is missing"),
        ("{{ .Name }} 60 A {{ (.Name }}", 21, "parenthesis"),
        ("{{ .Name }} 60 A {{ .Name .Zone }}", 27, "not accepted"),
        ("{{ .Name }} 60 A {{ parseInt .Name 16 }}", 21, "parseInt takes"),
        ("{{ .Name }} 60 A {{ parseInt 1 16 8 }}", 21, "parseInt takes"),
        ("{{ .Name }} 60 A {{ index .Name 1 }}", 21, "index takes"),
        ("{{ .Name }} 60 A {{ \"open }}", 18, "not closed"),
        ("{{ .Name }} 60 IN BOGUS 1", 19, "\"BOGUS\" is no type"),
        ("{{ .Name }} {{ .Group.a }} IN LOC 1", 31, "\"LOC\" is no type"),
        ("a.test 60 IN A nowhere", 16, "an IPv4 address"),
        ("ä.test 60 IN BOGUS 1", 14, "\"BOGUS\" is no type"),
    ] {
        let error = check(&TemplateText(text.to_owned()), &matches).unwrap_err();
        assert!(
            error.column == column && error.reason.to_string().contains(part),
            "{text}: {error}"
        );
    }
}

#[test]
fn documented_templates_are_accepted() {
    let matches = [expression("^(?P<a>.)(.)")];
    for text in [
        "{{ .Name }} 60 IN {{ .Type }} {{ .Remote }}",
        "{{ .Name }} {{ .Question.Qtype }} {{ .Class }} A 192.0.2.1",
        "{{ .Zone }} 60 IN SOA ns.{{ index .Match 1 }} hostmaster.x (1 60 60 60 60)",
        "{{ .Name }} 60 TYPE65280 \\# 1 0{{ .Group.a }}",
        "{{ .Name }} 60 HTTPS 1 . alpn=h2",
        "x{{ .Name -}} 60 A 192.0.2.1",
        "{{ .Name }} 60 A 10.0.0.{{ 8 | parseInt .Group.a 16 }}",
    ] {
        assert_eq!(check(&TemplateText(text.to_owned()), &matches), Ok(()), "{text}");
    }
}
