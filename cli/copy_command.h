// `rekindle copy`: images from one place to another, once or as they come.
#pragma once

#include <cstdint>
#include <string>

#include "cli/client.h"
#include "cli/interrupts.h"
#include "cli/output.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

struct GlobalOptions;

struct CopyImage {
  std::string image;  // with `follow`: a name, whose images are meant
  // Another daemon, as --host names it; the folder of a store; or an object store. One of them is empty: the
  // store at hand.
  std::string to, from;
  std::string bucket;  // the object store, as rclone names it; empty: it is none
  v1::ReceiveImageBegin begin;
  bool whole = false;   // also what the other place has of it
  bool check = false;   // only whether a copy could be written there
  bool follow = false;  // the newest one now, and each newer one as it comes, until interrupted
  uint32_t keep = 0;    // with `follow`: how many copies stay there; 0: all
};

// `client`: the store at hand.
int CopyImages(Client& client, const GlobalOptions& globals, const Output& output, Interrupts& interrupts,
               const CopyImage& what);

}  // namespace rekindle::cli
