//! A slab: stores values under small numbers and reuses freed numbers.

/// The number of a value in a slab.
pub(super) type Slot = u32;

/// Values by number.
#[derive(Debug)]
pub(super) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<Slot>,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(super) fn insert(&mut self, value: T) -> Slot {
        match self.free.pop() {
            Some(slot) => {
                self.places[slot as usize] = Some(value);
                slot
            }
            None => {
                self.places.push(Some(value));
                (self.places.len() - 1) as Slot
            }
        }
    }

    pub(super) fn remove(&mut self, slot: Slot) -> Option<T> {
        let value = self.places.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(value)
    }

    pub(super) fn get(&self, slot: Slot) -> Option<&T> {
        self.places.get(slot as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.places.get_mut(slot as usize)?.as_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Returns the numbers in use, in ascending order.
    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> {
        (0..)
            .zip(&self.places)
            .filter(|(_, place)| place.is_some())
            .map(|(slot, _)| slot)
    }
}
