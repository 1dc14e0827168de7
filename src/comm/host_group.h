// A group whose transport reads and writes host memory, for tensors of any device: they travel there and back.
#pragma once
#include "comm/group.h"

namespace scalewright {

/// `transport` sees CPU tensors only; those that are there already pass through untouched.
std::unique_ptr<Group> make_host_group(std::unique_ptr<Group> transport);

}  // namespace scalewright
