//! `forward`.

use super::{Mode, Row, Step, millis, seconds};
use Step::{Ask, AskAll, Checks, Connections, Open, Spread, Wait};

const ONE: &[Step] = &[Ask("a60.test A")];

pub(super) const ROWS: &[Row] = &[
    Row::new("forward", "forward . UP1", "forward . UP2", ONE),
    Row::new(
        "forward",
        "forward . UP1",
        "forward b.test UP1",
        &[Ask("a60.b.test A"), Ask("a60.test A")],
    )
    .case("FROM"),
    Row::new(
        "forward except",
        "forward . UP1",
        "forward . UP1 {\n except b.test\n}",
        &[Ask("a60.b.test A"), Ask("a60.test A")],
    ),
    Row::new(
        "forward force_tcp",
        "forward . UP1",
        "forward . UP1 {\n force_tcp\n}",
        ONE,
    ),
    Row::new(
        "forward prefer_udp",
        "forward . UP1",
        "forward . UP1 {\n prefer_udp\n}",
        &[Ask("a60.test A tcp"), Ask("a60.b.test A")],
    ),
    Row::new(
        "forward expire",
        "forward . UP1 {\n force_tcp\n expire 1m\n}",
        "forward . UP1 {\n force_tcp\n expire 1s\n}",
        &[Ask("a60.test A"), Open],
    ),
    Row::new(
        "forward max_age",
        "forward . UP1 {\n force_tcp\n expire 6s\n}",
        "forward . UP1 {\n force_tcp\n expire 6s\n max_age 6s\n}",
        &[
            Ask("a60.one.test A"),
            Wait(millis(2_400)),
            Ask("a60.two.test A"),
            Wait(millis(2_400)),
            Ask("a60.three.test A"),
            Wait(millis(2_400)),
            Ask("a60.four.test A"),
            Connections,
        ],
    ),
    Row::new(
        "forward read_timeout",
        "forward . UP1",
        "forward . UP1 {\n read_timeout 300ms\n}",
        ONE,
    )
    .modes(&[(1, Mode::Slow(millis(1_000)))]),
    Row::new(
        "forward max_fails",
        "forward . UP1 UP2 {\n policy sequential\n max_fails 0\n read_timeout 300ms\n}",
        "forward . UP1 UP2 {\n policy sequential\n max_fails 1\n read_timeout 300ms\n}",
        &[Ask("a60.one.test A"), Wait(seconds(9)), Ask("a60.two.test A")],
    )
    .modes(&[(1, Mode::Silent)]),
    Row::new(
        "forward max_connect_attempts",
        "forward . HERE:9 UP1 {\n policy sequential\n force_tcp\n max_fails 0\n}",
        "forward . HERE:9 UP1 {\n policy sequential\n force_tcp\n max_fails 0\n max_connect_attempts 1\n}",
        ONE,
    ),
    Row::new(
        "forward policy",
        "forward . UP1 UP2 {\n policy sequential\n}",
        "forward . UP1 UP2 {\n policy round_robin\n}",
        &[AskAll(&["a60.one.test A", "a60.one.test A"]), Spread],
    )
    .case("round_robin"),
    Row::new(
        "forward policy",
        "forward . UP1 UP2 {\n policy sequential\n}",
        "forward . UP1 UP2 {\n policy random\n}",
        &[
            AskAll(&[
                "a60.b1.test AAAA",
                "a60.b2.test AAAA",
                "a60.b3.test AAAA",
                "a60.b4.test AAAA",
                "a60.b5.test AAAA",
            ]),
            AskAll(&[
                "a60.c1.test AAAA",
                "a60.c2.test AAAA",
                "a60.c3.test AAAA",
                "a60.c4.test AAAA",
                "a60.c5.test AAAA",
            ]),
            AskAll(&[
                "a60.d1.test AAAA",
                "a60.d2.test AAAA",
                "a60.d3.test AAAA",
                "a60.d4.test AAAA",
                "a60.d5.test AAAA",
            ]),
            AskAll(&[
                "a60.e1.test AAAA",
                "a60.e2.test AAAA",
                "a60.e3.test AAAA",
                "a60.e4.test AAAA",
                "a60.e5.test AAAA",
            ]),
            AskAll(&[
                "a60.f1.test AAAA",
                "a60.f2.test AAAA",
                "a60.f3.test AAAA",
                "a60.f4.test AAAA",
                "a60.f5.test AAAA",
            ]),
            Spread,
        ],
    )
    .case("random"),
    Row::new(
        "forward policy",
        "forward . UP1 UP2 {\n policy sequential\n}",
        "forward . UP1 UP2",
        &[
            AskAll(&[
                "a60.b1.test AAAA",
                "a60.b2.test AAAA",
                "a60.b3.test AAAA",
                "a60.b4.test AAAA",
                "a60.b5.test AAAA",
            ]),
            AskAll(&[
                "a60.c1.test AAAA",
                "a60.c2.test AAAA",
                "a60.c3.test AAAA",
                "a60.c4.test AAAA",
                "a60.c5.test AAAA",
            ]),
            AskAll(&[
                "a60.d1.test AAAA",
                "a60.d2.test AAAA",
                "a60.d3.test AAAA",
                "a60.d4.test AAAA",
                "a60.d5.test AAAA",
            ]),
            AskAll(&[
                "a60.e1.test AAAA",
                "a60.e2.test AAAA",
                "a60.e3.test AAAA",
                "a60.e4.test AAAA",
                "a60.e5.test AAAA",
            ]),
            AskAll(&[
                "a60.f1.test AAAA",
                "a60.f2.test AAAA",
                "a60.f3.test AAAA",
                "a60.f4.test AAAA",
                "a60.f5.test AAAA",
            ]),
            Spread,
        ],
    )
    .case("by default"),
    Row::new(
        "forward health_check",
        "forward . UP1 {\n max_fails 1\n read_timeout 300ms\n}",
        "forward . UP1 {\n max_fails 1\n read_timeout 300ms\n health_check 0.5s no_rec domain check.test\n}",
        &[Ask("a60.test A"), Checks(1)],
    )
    .modes(&[(1, Mode::Silent)]),
    Row::new(
        "forward health_check",
        "forward . UP1 UP2 {\n policy sequential\n max_fails 1\n read_timeout 300ms\n health_check 0.2s\n}",
        "forward . UP1 UP2 {\n policy sequential\n max_fails 1\n read_timeout 300ms\n health_check 1h\n}",
        &[Ask("a60.one.test A"), Wait(seconds(9)), Ask("a60.two.test A")],
    )
    .case("DURATION")
    .modes(&[(1, Mode::Silent)]),
    Row::new(
        "forward max_concurrent",
        "forward . UP1",
        "forward . UP1 {\n max_concurrent 1\n}",
        &[Step::Codes(&[
            "a60.one.test AAAA",
            "a60.two.test AAAA",
            "a60.three.test AAAA",
        ])],
    )
    .modes(&[(1, Mode::Slow(millis(1_500)))]),
    Row::new(
        "forward max_concurrent",
        "forward . UP1 {\n max_concurrent 6\n}",
        "forward . UP1 {\n max_concurrent 4\n}",
        &[Step::Codes(&[
            "a60.one.test AAAA",
            "a60.two.test AAAA",
            "a60.three.test AAAA",
            "a60.four.test AAAA",
            "a60.five.test AAAA",
            "a60.six.test AAAA",
        ])],
    )
    .case("one client has all of it")
    .modes(&[(1, Mode::Slow(millis(1_500)))]),
    Row::new(
        "forward next",
        "forward . UP1\nforward . UP2",
        "forward . UP1 {\n next NXDOMAIN\n}\nforward . UP2",
        ONE,
    )
    .modes(&[(1, Mode::Denied)]),
    Row::new(
        "forward next_on_nodata",
        "forward . UP1\nforward . UP2",
        "forward . UP1 {\n next_on_nodata\n}\nforward . UP2",
        ONE,
    )
    .modes(&[(1, Mode::Empty)]),
    Row::new(
        "forward failover",
        "forward . UP1 UP2 {\n policy sequential\n}",
        "forward . UP1 UP2 {\n policy sequential\n failover NXDOMAIN\n}",
        ONE,
    )
    .modes(&[(1, Mode::Denied)]),
    Row::new(
        "forward failfast_all_unhealthy_upstreams",
        "forward . UP1 {\n max_fails 1\n read_timeout 300ms\n}",
        "forward . UP1 {\n max_fails 1\n read_timeout 300ms\n failfast_all_unhealthy_upstreams\n}",
        &[Ask("a60.one.test A"), Wait(seconds(4)), Ask("a60.two.test A")],
    )
    .modes(&[(1, Mode::Silent)]),
    Row::new(
        "forward source_address",
        "forward . UP1",
        "forward . UP1 {\n source_address HERE\n}",
        ONE,
    ),
    Row::new(
        "forward resolver",
        "forward . self.test:PORT1 {\n resolver UP2\n}",
        "forward . self.test:PORT1 {\n resolver UP3\n}",
        ONE,
    ),
];
