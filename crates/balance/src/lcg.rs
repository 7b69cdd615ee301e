//! The generator of the reference tables (rule B2.6): x <- x * 6364136223846793005 +
//! 1442695040888963407 mod 2^64. Chance is an input here: the seed is part of the policy or the
//! scenario.

/// A sequence that its seed decides.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lcg(u64);

impl Lcg {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number in [0, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// The next number below `n`. Draws even where there is no choice.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_7_gives_the_numbers_of_the_reference() {
        let mut lcg = Lcg::new(7);
        let first = [(); 4].map(|()| lcg.unit());
        let expected = [
            0.493_212_266_839_229_5,
            0.955_659_538_405_286_1,
            0.906_575_821_992_613_1,
            0.272_746_511_386_016_9,
        ];
        assert_eq!(first, expected);
    }
}
