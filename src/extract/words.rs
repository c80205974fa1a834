//! Pure. Texts that a trace says over and over, such as the names of its agents, each held once and
//! numbered: comparing two is comparing numbers.

use std::sync::Arc;

use hashbrown::HashMap;

/// As many are looked through one by one, which is quicker than hashing; a trace seldom has more.
const FEW: usize = 8;

/// The texts seen so far.
#[derive(Debug, Default)]
pub(super) struct Words {
    held: Vec<Arc<str>>,
    /// Those beyond the first few.
    by_text: HashMap<Arc<str>, Word>,
}

/// A text of [`Words`].
pub(super) type Word = u32;

impl Words {
    pub(super) fn number(&mut self, text: &str) -> Word {
        if let Some(at) = self.held.iter().take(FEW).position(|held| **held == *text) {
            return at as Word;
        }
        if let Some(&known) = self.by_text.get(text) {
            return known;
        }
        let (word, held) = (self.held.len() as Word, Arc::from(text));
        if self.held.len() >= FEW {
            self.by_text.insert(Arc::clone(&held), word);
        }
        self.held.push(held);
        word
    }

    pub(super) fn text(&self, word: Word) -> Arc<str> {
        self.held[word as usize].clone()
    }

    /// The text, held once.
    pub(super) fn held(&mut self, text: &str) -> Arc<str> {
        let word = self.number(text);
        self.text(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_have_one_number() {
        let texts: Vec<String> = (0..40).map(|n| format!("agent {}", n % 20)).collect();
        let mut words = Words::default();
        let numbers: Vec<Word> = texts.iter().map(|text| words.number(text)).collect();
        assert_eq!(numbers[..20], numbers[20..]);
        assert_eq!(numbers[..20], (0..20).collect::<Vec<Word>>());
        assert!(
            texts
                .iter()
                .zip(numbers)
                .all(|(text, number)| *words.text(number) == **text)
        );
    }
}
