// Images on their way from one store to another, through files, pipes or straight.
#pragma once

#include <cstdint>
#include <string>

#include "cli/client.h"
#include "cli/interrupts.h"
#include "cli/output.h"
#include "rekindle/v1/rekindle.pb.h"

namespace rekindle::cli {

// "-" is standard output or input.
struct ExportToFile {
  v1::SendImageRequest request;
  std::string file;
};
struct ImportFromFile {
  v1::ReceiveImageBegin begin;
  std::string file;
};
struct CopyImage {
  std::string image;  // with `follow`: a name, whose images are meant
  std::string to;     // as --host, or a store's folder
  v1::ReceiveImageBegin begin;
  bool whole = false;   // also what the other store has of it
  bool follow = false;  // the newest one now, and each newer one as it comes, until interrupted
  uint32_t keep = 0;    // with `follow`: how many copies stay there; 0: all
};

int ExportImageToFile(Client& client, const Output& output, Interrupts& interrupts, const ExportToFile& what);
int ImportImageFromFile(Client& client, const Output& output, Interrupts& interrupts,
                        const ImportFromFile& what);
// What is left out is what the newest image of the same name has that both stores have. `there`: the service
// that `what.to` names.
int CopyImageTo(Client& client, Client& there, const Output& output, Interrupts& interrupts,
                const CopyImage& what);

}  // namespace rekindle::cli
