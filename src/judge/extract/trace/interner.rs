//! Interns texts that a trace repeats, such as agent names. Each text is allocated once and has a
//! number, so texts are compared by comparing their numbers.

use std::sync::Arc;

use hashbrown::HashMap;

/// The number of texts that are compared one by one, which is faster than hashing; a trace rarely
/// has more.
const FEW: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Interner {
    texts: Vec<Arc<str>>,
    /// The symbols of all texts after the first [`FEW`].
    by_text: HashMap<Arc<str>, Symbol>,
}

/// The number of a text.
pub(crate) type Symbol = u32;

impl Interner {
    pub(crate) fn symbol(&mut self, text: &str) -> Symbol {
        let mut first = self.texts.iter().take(FEW);
        if let Some(position) = first.position(|known| **known == *text) {
            return position as Symbol;
        }
        if let Some(&symbol) = self.by_text.get(text) {
            return symbol;
        }
        let symbol = self.texts.len() as Symbol;
        let shared: Arc<str> = Arc::from(text);
        if self.texts.len() >= FEW {
            self.by_text.insert(Arc::clone(&shared), symbol);
        }
        if self.texts.is_empty() {
            self.texts.reserve(FEW);
        }
        self.texts.push(shared);
        symbol
    }

    pub(crate) fn text(&self, symbol: Symbol) -> Arc<str> {
        self.texts[symbol as usize].clone()
    }

    pub(crate) fn shared(&mut self, text: &str) -> Arc<str> {
        let symbol = self.symbol(text);
        self.text(symbol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_have_one_number() {
        let texts: Vec<String> = (0..40).map(|n| format!("agent {}", n % 20)).collect();
        let mut interner = Interner::default();
        let symbols: Vec<Symbol> = texts.iter().map(|text| interner.symbol(text)).collect();
        assert_eq!(symbols[..20], symbols[20..]);
        assert_eq!(symbols[..20], (0..20).collect::<Vec<Symbol>>());
        let mut pairs = texts.iter().zip(symbols);
        assert!(pairs.all(|(text, symbol)| *interner.text(symbol) == **text));
    }
}
