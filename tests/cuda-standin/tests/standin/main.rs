//! The stand-in, driven as the product drives the driver: through the same bindings, in a process of its own.

#[macro_use]
mod calls;
mod faults;
mod memory;
mod processes;
mod rules;
mod streams;
