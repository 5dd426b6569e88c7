// What a function's own code imports, found out by loading its handler once.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/cancellation.h"
#include "daemon/node.h"
#include "functions/function_catalog.h"
#include "restore/own_temporary.h"

namespace rekindle::daemon {

struct FunctionImports {
  std::vector<std::string> of_machine, of_layers;
  std::vector<std::string> unrenewed;  // for people: generators that instances of its image would share
  std::vector<std::string> drawn;      // the same of values that were drawn at random: "app: uuid.uuid4"
  double seconds = 0;                  // that loading it took, with all that it imports; 0: not known
};

// As its owner, within an instance's limits, with the /tmp of `temporary`. Blocks as long as the function may
// take to load. FailedPrecondition: the handler can't be loaded, which the message explains (`refused`: its
// runtime said so, rather than that its time or memory was not enough, or it could not be tried);
// Cancelled, as RunOwnerProgram.
absl::StatusOr<FunctionImports> FindImports(Node& node, const functions::FunctionRecord& record,
                                            restore::OwnTemporary temporary, const Cancellation* cancel,
                                            bool* refused);

}  // namespace rekindle::daemon
