// How many threads work for the functions of a node, by its processors.
#pragma once

namespace rekindle::functions {

struct ThreadCounts {
  // Of a machine with so many processors.
  static ThreadCounts For(unsigned processors);
  // Of those that this process may run on.
  static ThreadCounts OfThisMachine();

  // Serve HTTP, of callers and of instances. They never block; each request is a fraction of a millisecond's
  // work, but for large payloads, whose JSON is checked there.
  int http = 2;
  // Start instances. A start is some 20 ms, most of them CRIU's and the kernel's work: one for each
  // processor, so that many functions that are called at once start side by side. Some on any machine, since
  // starts also wait, for a disk. One owner's starts take all but one.
  int starts = 5;
  // Make images and templates. Not by processors: each capture compresses on all of them already, and has a
  // share of the disk and the memory. There are several because some wait long for a function to load.
  int makers = 4;
  int makers_of_one = 2;  // that one owner's functions have at most
  // Clear away what has ended, which nothing that is made can hold up. They wait rather than work.
  int clearers = 3;
  int clearers_of_one = 2;
};

}  // namespace rekindle::functions
