//! Sets of numbers as ranges. Ports are such sets and addresses are, so what is allowed can be computed
//! instead of tried out.

/// A set of numbers: ranges with both ends included, in order, with a gap between any two.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ranges(Vec<(u128, u128)>);

impl Ranges {
    /// No number.
    #[must_use]
    pub const fn none() -> Self {
        Self(Vec::new())
    }

    /// All numbers of a range; none where it ends before it starts.
    #[must_use]
    pub fn of(first: u128, last: u128) -> Self {
        [(first, last)].into_iter().collect()
    }

    /// Whether there is no number in it.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u128, u128)> {
        self.0.iter().copied()
    }

    /// What is in one of them.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.iter().chain(other.iter()).collect()
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let (mut mine, mut others) = (self.0.as_slice(), other.0.as_slice());
        let mut both = Vec::new();
        while let ([one, rest @ ..], [another, rest_of_others @ ..]) = (mine, others) {
            let (first, last) = (one.0.max(another.0), one.1.min(another.1));
            if first <= last {
                both.push((first, last));
            }
            if one.1 < another.1 {
                mine = rest;
            } else {
                others = rest_of_others;
            }
        }
        Self(both)
    }

    /// What is in this one only.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        self.intersection(&other.complement())
    }

    fn complement(&self) -> Self {
        let mut gaps = Vec::with_capacity(self.0.len() + 1);
        let mut next = Some(0);
        for (first, last) in self.iter() {
            if let Some(start) = next.filter(|start| *start < first) {
                gaps.push((start, first - 1));
            }
            next = last.checked_add(1);
        }
        gaps.extend(next.map(|start| (start, u128::MAX)));
        Self(gaps)
    }
}

impl FromIterator<(u128, u128)> for Ranges {
    fn from_iter<I: IntoIterator<Item = (u128, u128)>>(ranges: I) -> Self {
        let mut sorted: Vec<_> = ranges.into_iter().filter(|(first, last)| first <= last).collect();
        sorted.sort_unstable();
        let mut merged: Vec<(u128, u128)> = Vec::with_capacity(sorted.len());
        for (first, last) in sorted {
            match merged.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                Some(_) | None => merged.push((first, last)),
            }
        }
        Self(merged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(list: &[(u128, u128)]) -> Ranges {
        list.iter().copied().collect()
    }

    #[test]
    fn ranges_that_touch_are_one() {
        assert_eq!(ranges(&[(5, 9), (1, 4), (8, 12)]), ranges(&[(1, 12)]));
        assert_ne!(ranges(&[(1, 4), (6, 9)]), ranges(&[(1, 9)]));
        assert_eq!(ranges(&[(3, 2)]), Ranges::none());
        assert_eq!(
            ranges(&[(7, u128::MAX), (9, u128::MAX)]),
            ranges(&[(7, u128::MAX)])
        );
    }

    #[test]
    fn sets_are_sets() {
        let (one, other) = (ranges(&[(0, 9), (20, 29)]), ranges(&[(5, 24), (26, u128::MAX)]));
        for (result, expected) in [
            (one.union(&other), ranges(&[(0, u128::MAX)])),
            (one.intersection(&other), ranges(&[(5, 9), (20, 24), (26, 29)])),
            (one.without(&other), ranges(&[(0, 4), (25, 25)])),
            (other.without(&one), ranges(&[(10, 19), (30, u128::MAX)])),
            (one.without(&one), Ranges::none()),
            (one.without(&Ranges::none()), one.clone()),
        ] {
            assert_eq!(result, expected);
        }
    }
}
