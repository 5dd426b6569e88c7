// What numbers of options have to be, said so that a person understands it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace rekindle::cli {

// A number above zero, whole or not.
CLI::Validator AboveZero();
// A whole number above zero that 64 bits hold; larger ones would be taken for the largest.
CLI::Validator WholeAboveZero();

}  // namespace rekindle::cli
