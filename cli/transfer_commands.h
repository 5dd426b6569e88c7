// Images on their way through files and pipes.
#pragma once

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

int ExportImageToFile(Client& client, const Output& output, Interrupts& interrupts, const ExportToFile& what);
int ImportImageFromFile(Client& client, const Output& output, Interrupts& interrupts,
                        const ImportFromFile& what);

}  // namespace rekindle::cli
