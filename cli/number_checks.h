// What numbers of options have to be, said so that a person understands it.
#pragma once

#include <string>

#include "base/command_line.h"

namespace rekindle::cli {

// A number above zero, whole or not.
CLI::Validator AboveZero();
// A whole number above zero that 64 bits hold; larger ones would be taken for the largest.
CLI::Validator WholeAboveZero();

}  // namespace rekindle::cli
