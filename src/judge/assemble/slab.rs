//! A slab, which stores values under small numbers and reuses freed numbers.

pub(crate) type Slot = u32;

#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Option<T>>,
    free: Vec<Slot>,
}

impl<T> Slab<T> {
    pub(crate) fn new() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn insert(&mut self, value: T) -> Slot {
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

    pub(crate) fn remove(&mut self, slot: Slot) -> Option<T> {
        let value = self.places.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(value)
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&T> {
        self.places.get(slot as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.places.get_mut(slot as usize)?.as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, &T)> {
        let places = (0..).zip(&self.places);
        places.filter_map(|(slot, place)| Some((slot, place.as_ref()?)))
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().flatten()
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}
