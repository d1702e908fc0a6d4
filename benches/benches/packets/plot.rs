//! Figures as a picture: panels side by side, a logarithmic axis of sizes, ratios upwards from 0. Plain SVG.

use std::fmt::Write as _;

/// Lines over the same sizes.
#[derive(Debug)]
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) sizes: Vec<f64>,
    /// Name and a figure for each size.
    pub(crate) lines: Vec<(String, Vec<f64>)>,
}

const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 240.0;
/// Around the axes.
const MARGIN: f64 = 40.0;
const LEGEND: f64 = 18.0;
const COLOURS: [&str; 8] = [
    "#1b6ca8", "#7fb3d5", "#b03a2e", "#e6a29b", "#1e8449", "#8e44ad", "#b7950b", "#616a6b",
];

/// All panels, whose lines have the same names.
pub(crate) fn svg(panels: &[Panel]) -> String {
    let names = panels.first().map_or(&[][..], |panel| &panel.lines);
    let count = |number: usize| f64::from(u32::try_from(number).unwrap_or(u32::MAX));
    let (width, below) = (WIDTH * count(panels.len()), HEIGHT + LEGEND);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        below + LEGEND * count(names.len())
    );
    let top = panels
        .iter()
        .flat_map(|panel| &panel.lines)
        .flat_map(|(_, figures)| figures);
    let top = top.copied().fold(1.5, f64::max).ceil();
    for (number, panel) in panels.iter().enumerate() {
        draw(&mut text, panel, WIDTH * count(number), top);
    }
    for (number, (name, _)) in names.iter().enumerate() {
        let (y, colour) = (below + LEGEND * count(number), colour(number));
        put(
            &mut text,
            format_args!("<path d=\"M{MARGIN} {y}h20\" stroke=\"{colour}\" stroke-width=\"2\"/>"),
        );
        put(
            &mut text,
            format_args!("<text x=\"{}\" y=\"{}\">{name}</text>", MARGIN + 26.0, y + 4.0),
        );
    }
    text + "</svg>\n"
}

fn draw(text: &mut String, panel: &Panel, left: f64, top: f64) {
    let bounds = panel
        .sizes
        .first()
        .zip(panel.sizes.last())
        .map(|(low, high)| (low.log10(), high.log10()));
    let (low, high) = bounds.unwrap_or((0.0, 1.0));
    let x = |size: f64| left + MARGIN + (size.log10() - low) / (high - low) * (WIDTH - 2.0 * MARGIN);
    let y = |ratio: f64| HEIGHT - MARGIN - ratio / top * (HEIGHT - 2.0 * MARGIN);
    let middle = left + WIDTH / 2.0;
    put(
        text,
        format_args!(
            "<text x=\"{middle}\" y=\"20\" text-anchor=\"middle\">{}</text>",
            panel.title
        ),
    );
    let mut ratio = 0.0;
    while ratio <= top {
        let (from, to, at) = (x(panel.sizes[0]), left + WIDTH - MARGIN, y(ratio));
        put(
            text,
            format_args!("<path d=\"M{from:.1} {at:.1}H{to:.1}\" stroke=\"#ddd\"/>"),
        );
        put(
            text,
            format_args!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{ratio}</text>",
                from - 6.0,
                at + 4.0
            ),
        );
        ratio += 0.5;
    }
    for size in &panel.sizes {
        let under = HEIGHT - MARGIN + 16.0;
        put(
            text,
            format_args!(
                "<text x=\"{:.1}\" y=\"{under}\" text-anchor=\"middle\">{size}</text>",
                x(*size)
            ),
        );
    }
    for (number, (_, figures)) in panel.lines.iter().enumerate() {
        let points = panel.sizes.iter().zip(figures);
        let points: Vec<String> = points
            .map(|(size, ratio)| format!("{:.1},{:.1}", x(*size), y(*ratio)))
            .collect();
        let (points, colour) = (points.join(" "), colour(number));
        put(
            text,
            format_args!(
                "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
            ),
        );
    }
}

fn colour(number: usize) -> &'static str {
    COLOURS[number % COLOURS.len()]
}

fn put(text: &mut String, element: std::fmt::Arguments<'_>) {
    writeln!(text, "{element}").expect("a String takes all text");
}
