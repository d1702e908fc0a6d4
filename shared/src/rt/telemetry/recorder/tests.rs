//! The same histories, told to this recorder and to the exporter that comes with `metrics`.

use std::collections::BTreeSet;

use metrics::{Key, KeyName, Label, Level, Metadata, Recorder as _, SharedString};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use proptest::prelude::*;

use super::{Bounds, Recorder};

const ABOUT: Metadata<'static> = Metadata::new("", Level::INFO, None);
const USUAL: [f64; 3] = [0.000_25, 0.5, 8.192];
const OWN: [f64; 2] = [1.0, 64_000.0];

#[derive(Clone, Debug)]
enum Told {
    Described(&'static str),
    Counted(&'static str, &'static str, u64),
    Measured(&'static str, &'static str, f64),
    Moved(&'static str, &'static str, f64),
    Sampled(&'static str, &'static str, f64),
}

impl Told {
    fn tell(&self, recorder: &impl metrics::Recorder) {
        match *self {
            Self::Described(name) => describe(recorder, name),
            Self::Counted(name, label, by) => {
                recorder.register_counter(&key(name, label), &ABOUT).increment(by)
            }
            Self::Measured(name, label, to) => recorder.register_gauge(&key(name, label), &ABOUT).set(to),
            Self::Moved(name, label, by) => recorder.register_gauge(&key(name, label), &ABOUT).increment(by),
            Self::Sampled(name, label, value) => recorder
                .register_histogram(&key(name, label), &ABOUT)
                .record(value),
        }
    }
}

fn describe(recorder: &impl metrics::Recorder, name: &'static str) {
    let (name_of, help) = (KeyName::from(name), SharedString::from("What\nit \\ is."));
    match name.as_bytes()[0] {
        b'c' => recorder.describe_counter(name_of, None, help),
        b'g' => recorder.describe_gauge(name_of, None, help),
        _ => recorder.describe_histogram(name_of, None, help),
    }
}

fn key(name: &'static str, label: &'static str) -> Key {
    match label {
        "" => Key::from_name(name),
        label => Key::from_parts(name, vec![Label::new("to", label), Label::new("by", "us")]),
    }
}

fn told() -> impl Strategy<Value = Told> {
    let label = || prop::sample::select(vec!["", "a", "a\"b\\c\nd"]);
    let of = |names: [&'static str; 2]| prop::sample::select(names.to_vec());
    let (counters, gauges, histograms) = (["c_total", "c2_total"], ["g", "g2"], ["h_seconds", "own_seconds"]);
    // Parts of 1024, so that both add up to the same in whatever order.
    let value = || (0..90_000_000i32).prop_map(|parts| f64::from(parts) / 1024.0);
    let all = [counters, gauges, histograms].concat();
    prop_oneof![
        prop::sample::select(all).prop_map(Told::Described),
        (of(counters), label(), 0..5u64).prop_map(|(name, label, by)| Told::Counted(name, label, by)),
        (of(gauges), label(), value()).prop_map(|(name, label, to)| Told::Measured(name, label, to)),
        (of(gauges), label(), value()).prop_map(|(name, label, by)| Told::Moved(name, label, -by)),
        (of(histograms), label(), value()).prop_map(|(name, label, value)| Told::Sampled(name, label, value)),
        (
            of(histograms),
            label(),
            prop::sample::select([USUAL.as_slice(), &OWN].concat())
        )
            .prop_map(|(name, label, value)| Told::Sampled(name, label, value)),
    ]
}

fn lines(page: &str) -> BTreeSet<String> {
    let lines = page.lines().filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

proptest! {
    #[test]
    fn the_page_has_the_lines_that_the_exporter_writes(history in prop::collection::vec(told(), 0..60)) {
        let ours = Recorder::new(Bounds::new(&USUAL, &[("own_seconds", &OWN)]));
        let theirs = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &USUAL)
            .and_then(|builder| builder.set_buckets_for_metric(Matcher::Full("own_seconds".to_owned()), &OWN))
            .expect("there are buckets")
            .build_recorder();
        for told in &history {
            told.tell(&ours);
            told.tell(&theirs);
        }
        prop_assert_eq!(lines(&ours.render()), lines(&theirs.handle().render()));
    }
}

#[test]
fn a_family_stands_together_below_one_head() {
    let recorder = Recorder::new(Bounds::new(&USUAL, &[]));
    for (name, label) in [
        ("b_total", "x"),
        ("a_total", "y"),
        ("b_total", ""),
        ("a_total", "x"),
    ] {
        recorder.register_counter(&key(name, label), &ABOUT).increment(1);
    }
    recorder.describe_counter("a_total".into(), None, "First.".into());
    recorder.describe_counter("a_total".into(), None, "Second.".into());
    assert_eq!(
        recorder.render(),
        "# HELP a_total First.\n# TYPE a_total counter\n\
         a_total{to=\"x\",by=\"us\"} 1\na_total{to=\"y\",by=\"us\"} 1\n\
         # TYPE b_total counter\nb_total 1\nb_total{to=\"x\",by=\"us\"} 1\n"
    );
}

#[test]
fn what_is_no_number_is_counted_above_every_bound() {
    let recorder = Recorder::new(Bounds::new(&[1.0], &[]));
    recorder
        .register_histogram(&key("h", ""), &ABOUT)
        .record(f64::NAN);
    let page = recorder.render();
    assert!(
        page.contains("h_bucket{le=\"1\"} 0\nh_bucket{le=\"+Inf\"} 1\n"),
        "{page}"
    );
}
