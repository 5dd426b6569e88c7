#include "functions/request_id.h"

#include "base/uuid.h"

namespace rekindle::functions {

std::string NewRequestId() { return NewUuid(); }

}  // namespace rekindle::functions
