// A range of addresses that one thread of memory_juggler does all with that a program may do with private
// memory, and what it must hold after each step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tests/clone_jobs/shadow.h"

namespace rekindle::clone_jobs {

// Owned by one thread, but for Check() of pages that nobody changes. A fork's child has a copy of its own.
class Arena {
 public:
  // Maps the first half of `pages` (a few pages of zeros among them) at `address`; the rest is a hole.
  // `shadows`: `pages` of them, zeroed; they stay with the caller.
  void Prepare(uintptr_t address, size_t pages, ShadowPage* shadows, uint64_t seed);

  // One random step. Empty, or what was found to be wrong.
  std::string Step(Random& random, const char* who);
  // Every page.
  std::string CheckAll(const char* who);
  // Of everything that must be there; two arenas that hold the same have the same.
  uint64_t Digest() const;
  // What the child of a fork has of it.
  void BecomeForkedCopy();
  // A run of random pages without changing anything.
  std::string CheckSome(Random& random, const char* who) const;

 private:
  struct Run {
    size_t first, pages;
  };
  Run Pick(Random& random, size_t most) const;
  uint64_t* Page(size_t page) const { return reinterpret_cast<uint64_t*>(address_ + page * kPageSize); }
  bool All(Run run, bool mapped) const;
  bool Has(Run run, int access) const;
  std::string Check(Run run, const char* who) const;
  std::string CheckThroughKernel(size_t page, const char* who) const;
  void Allow(Run run);  // PROT_READ and PROT_WRITE again, for what is mapped
  void Zero(Run run, bool mapped);
  void Move(Random& random, Run run);
  void Resize(Random& random, Run run);
  bool IsMapped(size_t page) const;
  bool IsOneMapping(Run run) const;

  uintptr_t address_ = 0;
  size_t pages_ = 0;
  ShadowPage* shadows_ = nullptr;
  uint64_t next_token_ = 0;
};

}  // namespace rekindle::clone_jobs
